"""Taking out the images that a device can neither load nor compile.

A container is rewritten in place: the images that stay are moved together behind its header, the header's size
shrinks to them, and the rest of the container becomes zeros. The result is what `fatbinary` writes for fewer targets,
so every reader sees an ordinary container; merely zeroing a payload would leave an entry that `cuobjdump` refuses
("Uncompress failed"). Addresses of containers, and with them the registration records, do not change. A container
without any image that fits becomes an empty one; its kernels could not be launched before either.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.distro.elf.fatbin import Container, Entry, container_header
from vllm_spark.distro.elf.source import Edit, Source, Span
from vllm_spark.distro.elf.target import Support
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from vllm_spark.distro.elf.target import Capability

__all__ = ["Blanking", "check_blanked", "plan_blanking"]


@dataclass(frozen=True)
class Blanking:
    """What is to be taken out of one shared object.

    Attributes:
        dropped: images by label, with their number.
        emptied: containers that keep no image.
        bytes_zeroed: bytes that become zero.
    """

    edits: tuple[Edit, ...]
    dropped: dict[str, int]
    kept: dict[str, int]
    emptied: int
    bytes_zeroed: int


def plan_blanking(found: Sequence[Container], device: Capability) -> Blanking:
    """Plan to keep the images that `device` loads or compiles, and those of a form that we do not know."""
    edits: list[Edit] = []
    dropped: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    emptied = 0
    for container in found:
        stay = [entry for entry in container.entries if _stays(entry, device)]
        gone = [entry for entry in container.entries if not _stays(entry, device)]
        kept.update(entry.label for entry in stay)
        if gone:
            dropped.update(entry.label for entry in gone)
            emptied += not stay
            edits.append(_shrink(container, stay))
    zeroed = sum(edit.size - edit.filled for edit in edits)
    return Blanking(tuple(edits), dict(dropped), dict(kept), emptied, zeroed)


def check_blanked(
    before: Sequence[Container],
    source: Source,
    after: Sequence[Container],
    result: Source,
    device: Capability,
    *,
    rewritten: Collection[int] = (),
) -> None:
    """Prove that blanking changed nothing that `device` could use, from the two files alone.

    Every container must stand where it stood, and hold, in order and byte for byte, the images of the old one that
    the device loads or compiles. So a kernel that had a loadable image has the same one.

    Args:
        rewritten: indices of containers whose content somebody else vouches for (`aot.splice.check_spliced`).

    Raises:
        ArtefactError: it is not so.
    """
    if [one.offset for one in before] != [one.offset for one in after]:
        raise ArtefactError("fat binaries moved while being blanked", where=result.name)
    for old, new in zip(before, after, strict=True):
        if old.index in rewritten:
            continue
        stay = [entry for entry in old.entries if _stays(entry, device)]
        same = len(stay) == len(new.entries) and all(
            source.read(ours.offset, ours.size) == result.read(theirs.offset, theirs.size)
            for ours, theirs in zip(stay, new.entries, strict=True)
        )
        if not same:
            raise ArtefactError(
                f"fat binary {old.index} lost or changed an image that {device} uses", where=result.name
            )


def _stays(entry: Entry, device: Capability) -> bool:
    return entry.target.runs_on(device, entry.form) is not Support.ABSENT


def _shrink(container: Container, stay: Sequence[Entry]) -> Edit:
    header = container_header(container.version, sum(entry.size for entry in stay))
    return Edit(container.offset, container.size, (header, *(Span(entry.offset, entry.size) for entry in stay)))
