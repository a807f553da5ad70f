"""Everything that a manifest says, from checkout, wheels and index, refused where they disagree."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vllm_spark import paths, proc
from vllm_spark.distro.ext import toolchain
from vllm_spark.distro.index import lines
from vllm_spark.distro.index.state import load as load_index
from vllm_spark.distro.release import manifest as form
from vllm_spark.distro.release.describe import verdict
from vllm_spark.distro.upstream import fetch
from vllm_spark.distro.wheel.archive import Wheel
from vllm_spark.distro.wheel.audit import audit
from vllm_spark.distro.wheel.expected import read_expectations
from vllm_spark.distro.wheel.repack import SBOM_NAME
from vllm_spark.distro.wheel.rules import RULES
from vllm_spark.distro.wheel.sbom import PATCH_PROPERTY, read_sbom
from vllm_spark.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.profile import Profile
    from vllm_spark.distro.series.store import Series
    from vllm_spark.distro.upstream.pins import Upstream
    from vllm_spark.distro.wheel.audit import Audit

__all__ = ["audited", "audits", "index_entries", "patches", "source", "tools", "wheels"]

_PROPERTY = re.compile(
    r"(?P<cls>python|native); sha256=(?P<sha256>[0-9a-f]{64}); (?:applied|not applied: (?P<reason>.+))"
)


def wheels(folder: Path, upstream: Upstream) -> tuple[Path, Path]:
    """The patched vLLM and the extension in `folder`.

    Raises:
        ConfigError: one is missing, or there is more than this release.
    """
    found = []
    for stem in (f"vllm-{upstream.vllm_version}-", f"vllm_spark-{upstream.package_version}-"):
        here = sorted(folder.glob(f"{stem}*.whl"))
        if len(here) != 1:
            what = f"{len(here)} wheels {stem}*, one expected"
            raise ConfigError(what, where=str(folder), hint=f"vllm-spark release build --out {folder}")
        found += here
    others = sorted({path.name for path in folder.glob("*.whl")} - {path.name for path in found})
    if others:
        raise ConfigError(f"holds another wheel: {others[0]}", where=str(folder), hint="one folder per release")
    return found[0], found[1]


def audits(pair: tuple[Path, Path], upstream: Upstream, profile: Profile, series: Series) -> tuple[Audit, Audit]:
    """Audit both wheels anew: what a release says is about the bytes in its folder.

    Raises:
        ArtefactError: a rule is violated; the first is named.
    """
    expectations = read_expectations()
    official = fetch.fetch(upstream.project, upstream.file("wheel", profile.machine))
    names = [patch.meta.name for patch in series.patches]
    done = (audit(pair[0], expectations, patches=names, original=official), audit(pair[1], expectations))
    for one in done:
        if one.violations:
            hint = f"vllm-spark wheel audit {one.facts.path}"
            raise ArtefactError(str(one.violations[0]), where=one.facts.path.name, hint=hint)
    return done


def audited(done: Audit) -> form.Audited:
    """An audit as the manifest has it."""
    rules = tuple(rule.id for rule in RULES)
    return form.Audited(
        done.facts.path.name, rules, tuple(verdict(one) for one in done.facts.elf if one.report.containers)
    )


def patches(series: Series, vllm: Path) -> tuple[form.Patch, ...]:
    """The series, and what the wheel's own bill of materials says of each patch.

    Raises:
        ArtefactError: the wheel was made from another series.
    """
    where = vllm.name
    with Wheel(vllm) as wheel:
        document = read_sbom(wheel.read(f"{wheel.dist_info}/{SBOM_NAME}"), where)
    properties = document["metadata"]["component"].get("properties", [])
    told = {entry["name"].removeprefix(PATCH_PROPERTY): _PROPERTY.fullmatch(entry["value"]) for entry in properties}
    found = []
    for patch in series.patches:
        meta, state = patch.meta, told.get(patch.meta.name)
        sha256 = fetch.sha256_hex(patch.format())
        if state is None or state["sha256"] != sha256:
            hint = "vllm-spark release build, then assemble again"
            raise ArtefactError(f"made from another {meta.name} than the series has", where=where, hint=hint)
        reason = state["reason"] or ""
        found.append(
            form.Patch(meta.name, patch.subject, sha256, meta.kind, meta.cls, meta.upstream, not reason, reason)
        )
    return tuple(found)


def source() -> form.Source:
    """The commit of this checkout, and whether it is all that was built."""
    root = paths.repo_root()
    commit = proc.run(["git", "rev-parse", "--verify", "HEAD"], cwd=root, check=False)
    if commit.status != 0:
        return form.Source("", clean=False)
    status = proc.run(["git", "status", "--porcelain"], cwd=root).text
    return form.Source(commit.text.strip(), clean=not status)


def tools(profile: Profile) -> form.Toolchain:
    """What compiles the extension for `profile`."""
    found = toolchain.ensure(profile)
    compiler = proc.run([found.host_compiler(), "--version"], env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    pins = tuple(form.Input(pin.role, pin.name, pin.sha256) for pin in found.pins)
    return form.Toolchain(profile.name, compiler.text.splitlines()[0], pins)


def index_entries(index: Path, digests: dict[str, str], version: str) -> dict[str, str]:
    """Our files as the index lists them.

    Raises:
        ArtefactError: it lists others for this release, or the same with other bytes.
    """
    listed = {fact.filename: fact.sha256 for fact in lines.members(load_index(index), version)}
    if listed != digests:
        names = sorted(name for name in listed.keys() | digests.keys() if listed.get(name) != digests.get(name))
        what = f"does not list the wheels of the folder for {version}: {', '.join(names)}"
        raise ArtefactError(what, where=str(index), hint="vllm-spark release build writes both")
    return listed
