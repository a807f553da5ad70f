"""What a device can do with a shared object: image by image, kernel by kernel."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.distro.elf.kernels import kernels
from vllm_spark.distro.elf.shared import Abi, read_shared_object
from vllm_spark.distro.elf.target import Capability, Support

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_spark.distro.elf.fatbin import Container
    from vllm_spark.distro.elf.source import Source

__all__ = ["ExtensionReport", "KernelId", "inspect_extension", "kernel_support", "lost_kernels"]

# A kernel is registered by one container; another translation unit may hold another copy under the same name.
KernelId = tuple[int, str]
_RANK = {Support.NATIVE: 0, Support.JIT: 1, Support.UNKNOWN: 2, Support.ABSENT: 3}


@dataclass(frozen=True)
class ExtensionReport:
    """One shared object as a device of capability `device` sees it.

    Attributes:
        images: number of images by label.
        unusable: number of images by label that the device can neither load nor compile.
        unusable_bytes: what those occupy.
        containers: fat binaries, of which `empty` hold no image.
        kernels: number of kernels by verdict; a kernel in two containers counts twice.
        verdict: the best verdict of any kernel; None without device code.
    """

    name: str
    size: int
    machine: str
    device: Capability
    images: dict[str, int]
    unusable: dict[str, int]
    unusable_bytes: int
    containers: int
    empty: int
    kernels: dict[Support, int]
    verdict: Support | None
    abi: Abi


def inspect_extension(source: Source, device: Capability) -> tuple[ExtensionReport, dict[KernelId, Support]]:
    """Read one shared object down to the kernel names; the second part says what the device can do with each.

    Raises:
        ArtefactError: it is malformed.
    """
    shared = read_shared_object(source)
    entries = [entry for container in shared.containers for entry in container.entries]
    dead = [entry for entry in entries if entry.target.runs_on(device, entry.form) is Support.ABSENT]
    found = kernel_support(source, shared.containers, device)
    counts = Counter(found.values())
    best = min(counts, key=_RANK.__getitem__, default=None)
    if best is None and shared.containers:
        best = Support.UNKNOWN if entries and len(dead) < len(entries) else Support.ABSENT
    report = ExtensionReport(
        name=shared.name,
        size=shared.size,
        machine=shared.machine.removeprefix("EM_").lower(),
        device=device,
        images=_labels(entry.label for entry in entries),
        unusable=_labels(entry.label for entry in dead),
        unusable_bytes=sum(entry.size for entry in dead),
        containers=len(shared.containers),
        empty=sum(not container.entries for container in shared.containers),
        kernels={support: counts[support] for support in _RANK if counts[support]},
        verdict=best,
        abi=shared.abi,
    )
    return report, found


def kernel_support(source: Source, found: tuple[Container, ...], device: Capability) -> dict[KernelId, Support]:
    """The best that `device` can do with each kernel; every image is decompressed, one at a time."""
    result: dict[KernelId, Support] = {}
    for container in found:
        for entry in container.entries:
            support = entry.target.runs_on(device, entry.form)
            for name in kernels(source, entry):
                key = (container.index, name)
                if key not in result or _RANK[support] < _RANK[result[key]]:
                    result[key] = support
    return result


def lost_kernels(before: dict[KernelId, Support], after: dict[KernelId, Support]) -> list[str]:
    """Kernels whose verdict in `after` is worse than in `before`, as readable lines."""
    return [
        f"{name} (fat binary {index}): {support.value}, now {after.get((index, name), Support.ABSENT).value}"
        for (index, name), support in sorted(before.items(), key=lambda item: item[0])
        if support.loadable and _RANK[after.get((index, name), Support.ABSENT)] > _RANK[support]
    ]


def _labels(labels: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(labels).items()))
