"""A release in words and rows: for the index's page, and for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_spark.distro.elf.target import Support
from vllm_spark.distro.index.facts import PatchNote, ReleaseFact, Verdict

if TYPE_CHECKING:
    from typing import Literal

    from vllm_spark.distro.profile import Profile
    from vllm_spark.distro.release.made import Release
    from vllm_spark.distro.release.patched import Patched
    from vllm_spark.distro.upstream.pins import Upstream
    from vllm_spark.distro.wheel.audit import Audit
    from vllm_spark.distro.wheel.facts import ElfFile

__all__ = ["describe", "file_rows", "patch_rows", "step_rows", "verdict"]


def describe(upstream: Upstream, profile: Profile, patched: Patched, vllm: Audit) -> ReleaseFact:
    """The release as the landing page shows it; `vllm` is the audit of the patched wheel."""
    subjects = {patch.meta.name: patch.subject for patch in patched.series.patches}
    return ReleaseFact(
        project="vllm-spark",
        version=upstream.package_version,
        vllm=upstream.version,
        cuda=upstream.requires.cuda,
        torch=upstream.requires.torch,
        python=upstream.requires.python,
        patches=tuple(
            PatchNote(entry.name, subjects[entry.name], next(iter(entry.links), None), entry.applied, entry.reason)
            for entry in patched.entries
        ),
        device=f"compute capability {profile.compute_capability}",
        verdicts=tuple(verdict(one) for one in vllm.facts.elf if one.report.containers),
    )


def verdict(one: ElfFile) -> Verdict:
    """What the device finds in one extension."""
    report = one.report
    images = ", ".join(f"{count} x {label}" for label, count in report.images.items()) or "none that it can use"
    counts = ", ".join(f"{count} {support.value}" for support, count in report.kernels.items())
    return Verdict(one.name, _word(report.kernels), images, f"kernels: {counts}" if counts else "")


def _word(kernels: dict[Support, int]) -> Literal["native", "jit", "partly", "absent"]:
    """One word for an extension: native or JIT only when that holds for every kernel in it."""
    kinds = {support for support, count in kernels.items() if count}
    if kinds == {Support.NATIVE}:
        return "native"
    if kinds == {Support.JIT}:
        return "jit"
    return "partly" if kinds & {Support.NATIVE, Support.JIT} else "absent"


def file_rows(release: Release) -> list[tuple[str, str, str]]:
    """Name, size in MiB and SHA-256 of each wheel."""
    return [
        (done.facts.path.name, f"{done.facts.size / 2**20:.1f}", sha256)
        for done, sha256 in zip(release.audits, release.digests, strict=True)
    ]


def patch_rows(release: Release) -> list[tuple[str, str, str]]:
    """Name, class and what became of each patch."""
    return [
        (entry.name, entry.patch_class, "applied" if entry.applied else f"not applicable: {entry.reason}")
        for entry in release.patched.entries
    ]


def step_rows(release: Release) -> list[tuple[str, str]]:
    """Each step and its seconds, then the sum."""
    rows = [(name, f"{seconds:.1f}") for name, seconds in release.seconds.items()]
    return [*rows, ("all", f"{sum(release.seconds.values()):.1f}")]
