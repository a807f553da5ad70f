"""Facts about a wheel as a table for people and as JSON for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_spark import console
from vllm_spark.distro.elf.target import Support

if TYPE_CHECKING:
    from vllm_spark.distro.wheel.facts import ElfFile, WheelFacts

__all__ = ["as_json", "show_facts"]


def show_facts(facts: WheelFacts) -> None:
    """Print the ELF files of a wheel, largest first."""
    device = next((str(one.report.device) for one in facts.elf), "")
    kinds = (Support.NATIVE, Support.JIT, Support.ABSENT)
    rows = [
        (
            one.name,
            f"{one.report.size / 2**20:.1f}",
            f"{one.packed / 2**20:.1f}",
            _verdict(one),
            "/".join(str(one.report.kernels.get(kind, 0)) for kind in kinds),
            _abi(one),
            _dotted(one.report.abi.glibc),
            " ".join(f"{count}x{label}" for label, count in one.report.images.items()) or "-",
        )
        for one in sorted(facts.elf, key=lambda one: -one.report.size)
    ]
    title = f"{facts.path.name}: {facts.size} bytes, {facts.members} members; judged for {device or 'no device'}"
    columns = ("ELF file", "MiB", "packed", "verdict", "native/JIT/absent", "ABI", "glibc", "images")
    console.table(title, columns, rows)


def as_json(facts: WheelFacts) -> dict[str, Any]:
    """The same, and more, as plain data."""
    return {
        "file": facts.path.name,
        "size": facts.size,
        "members": facts.members,
        "project": facts.project,
        "version": facts.version,
        "tags": list(facts.tags),
        "sbom": facts.sbom is not None,
        "elf": [_elf_json(one) for one in facts.elf],
    }


def _elf_json(one: ElfFile) -> dict[str, Any]:
    report = one.report
    return {
        "name": one.name,
        "size": report.size,
        "packed": one.packed,
        "machine": report.machine,
        "device": str(report.device),
        "verdict": report.verdict.value if report.verdict else None,
        "kernels": {support.value: count for support, count in report.kernels.items()},
        "images": report.images,
        "unusable": report.unusable,
        "unusable_bytes": report.unusable_bytes,
        "fat_binaries": report.containers,
        "empty_fat_binaries": report.empty,
        "torch_abi": report.abi.torch,
        "private_python": list(report.abi.private_python),
        "glibc": _dotted(report.abi.glibc),
    }


def _verdict(one: ElfFile) -> str:
    return one.report.verdict.value if one.report.verdict else "no device code"


def _abi(one: ElfFile) -> str:
    python = "abi3 " if ".abi3." in one.name and not one.report.abi.private_python else ""
    return f"{python}torch {one.report.abi.torch}" if one.report.abi.torch != "none" else python.strip() or "-"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}" if version != (0, 0) else "-"
