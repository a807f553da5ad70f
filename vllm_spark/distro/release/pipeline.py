"""`make release`: pinned upstream files in, wheels and index out. Every step is whole or leaves nothing."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from pypi_simple import PYPI_SIMPLE_ENDPOINT

from vllm_spark import console, paths
from vllm_spark.distro import profile as profiles
from vllm_spark.distro.elf.target import Capability
from vllm_spark.distro.ext import build as extension
from vllm_spark.distro.index import tree as index
from vllm_spark.distro.index.facts import ProjectFact
from vllm_spark.distro.release import native
from vllm_spark.distro.release.describe import describe
from vllm_spark.distro.release.made import Release
from vllm_spark.distro.release.patched import Patched, apply_for_wheel
from vllm_spark.distro.upstream import fetch, pins
from vllm_spark.distro.wheel.audit import Audit, audit
from vllm_spark.distro.wheel.expected import read_expectations
from vllm_spark.distro.wheel.repack import Repacked, repack
from vllm_spark.distro.wheel.sbom import make_sbom
from vllm_spark.errors import ArtefactError, IntegrityError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.aot.supply import CacheSupply
    from vllm_spark.distro.profile import Profile
    from vllm_spark.distro.upstream.pins import Upstream

__all__ = ["build"]

_HEADROOM = 1 << 30  # bytes: the new wheel, the copy in the index, and the largest extension while it is rewritten


def build(profile_name: str, out: Path, index_dir: Path, aot: native.Aot = native.Aot.CACHED) -> Release:
    """Make both wheels in `out`, audit them, and add them to the index in `index_dir`.

    Args:
        aot: what to do about kernels that the device's driver would have to compile.

    Raises:
        ConfigError, IntegrityError, PatchError, ToolMissing, ProcessError, ResourceError: from the steps.
        ArtefactError: a wheel fails its audit; it stays in `out` to be looked at, and the index stays as it was.
    """
    profile, upstream = profiles.load(profile_name), pins.load()
    seconds: dict[str, float] = {}
    with paths.lock(paths.cache_dir("locks") / hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]):
        paths.require_folder(out)
        paths.require_space(out, _HEADROOM)
        with console.step("fetch upstream files", seconds):
            official = fetch.fetch(upstream.project, upstream.file("wheel", profile.machine))
        with console.step("apply the series", seconds):
            patched = apply_for_wheel(upstream, official)
        with console.step("compile the extension", seconds):
            ours = extension.build(profile, out)
        with console.step("compile ahead of time", seconds):
            supply = native.supply_for(aot, profile, official)
        with console.step("repack vLLM", seconds):
            repacked = _repack(upstream, profile, official, patched, out, supply)
        wheels = (repacked.path, ours)
        with console.step("audit both wheels", seconds):
            native.check(aot, repacked, supply)
            audits = _audit(wheels, official, patched)
        with console.step("write the index", seconds):
            _index(index_dir, wheels, upstream, profile, patched, audits)
    return Release(upstream, profile, wheels, index_dir, patched, repacked, audits, seconds)


def _repack(
    upstream: Upstream, profile: Profile, official: Path, patched: Patched, out: Path, supply: CacheSupply | None
) -> Repacked:
    pin = upstream.file("wheel", profile.machine)
    sbom = make_sbom(
        upstream.project,
        upstream.vllm_version,
        upstream_file=pin.name,
        upstream_version=upstream.version,
        upstream_sha256=pin.sha256,
        patches=patched.entries,
    )
    return repack(
        official,
        out,
        version=upstream.vllm_version,
        platform_tag=pin.name.removesuffix(".whl").split("-")[-1],
        replaced=patched.replaced,
        added=patched.added,
        sbom=sbom,
        keep_for=Capability.parse(profile.compute_capability),
        compiled=supply,
    )


def _audit(wheels: tuple[Path, Path], official: Path, patched: Patched) -> tuple[Audit, ...]:
    expectations = read_expectations()
    names = [entry.name for entry in patched.entries]
    audits = (
        audit(wheels[0], expectations, patches=names, original=official),
        audit(wheels[1], expectations),
    )
    for done in audits:
        for violation in done.violations:
            console.warn(f"{done.facts.path.name}: {violation}")
    bad = next((done for done in audits if done.violations), None)
    if bad is not None:
        what = f"{len(bad.violations)} rules violated, the first: {bad.violations[0]}"
        raise ArtefactError(what, where=str(bad.facts.path), hint=f"vllm-spark wheel audit {bad.facts.path}")
    return audits


def _index(
    folder: Path,
    wheels: tuple[Path, ...],
    upstream: Upstream,
    profile: Profile,
    patched: Patched,
    audits: tuple[Audit, ...],
) -> None:
    # Says that our vllm extends the default index's project of that name and is no stranger's (PEP 708).
    tracks = ProjectFact(upstream.project, tracks=(f"{PYPI_SIMPLE_ENDPOINT}{upstream.project}/",))
    release = describe(upstream, profile, patched, audits[0])
    try:
        index.build(folder, wheels, projects=[tracks], releases=[release])
    except IntegrityError as err:
        hint = f"{err.hint}; an index that nobody has installed from may be removed: {folder}"
        raise IntegrityError(err.what, where=err.where, hint=hint) from err
