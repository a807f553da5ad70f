"""Everything that the audit and `wheel inspect` know about a wheel, read once."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark.distro.elf.report import ExtensionReport, KernelId, inspect_extension
from vllm_spark.distro.elf.source import FileSource
from vllm_spark.distro.wheel.archive import Wheel
from vllm_spark.distro.wheel.repack import SBOM_NAME
from vllm_spark.paths import require_space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.elf.target import Capability, Support
    from vllm_spark.distro.wheel.names import WheelName

__all__ = ["ElfFile", "WheelFacts", "read_facts"]

# Shared objects by name, and programs, which have no suffix at all.
_MAYBE_ELF = re.compile(r"(?:\.so(?:\.\d+)*|(?:^|/)[^./]+)$")


@dataclass(frozen=True)
class ElfFile:
    """One ELF member.

    Attributes:
        packed: bytes in the archive.
        kernels: what the device can do with each kernel.
    """

    report: ExtensionReport
    packed: int
    kernels: dict[KernelId, Support]

    @property
    def name(self) -> str:
        """The member."""
        return self.report.name


@dataclass(frozen=True)
class WheelFacts:
    """One wheel.

    Attributes:
        tags: as WHEEL says.
        project, version: as METADATA says.
        sbom: bytes of our bill of materials, None when there is none.
        largest: packed sizes of the ten largest members.
    """

    path: Path
    name: WheelName
    size: int
    members: int
    tags: tuple[str, ...]
    project: str
    version: str
    sbom: bytes | None
    largest: tuple[tuple[str, int], ...]
    elf: tuple[ElfFile, ...]


def read_facts(path: Path, device: Capability) -> WheelFacts:
    """Read `path` as a device of capability `device` sees it.

    Raises:
        ArtefactError, IntegrityError: it is no sound wheel.
    """
    with Wheel(path) as wheel:
        metadata = message_from_bytes(wheel.read(f"{wheel.dist_info}/METADATA"))
        tags = message_from_bytes(wheel.read(f"{wheel.dist_info}/WHEEL")).get_all("Tag", [])
        sbom = f"{wheel.dist_info}/{SBOM_NAME}"
        packed = sorted(((info.compress_size, name) for name, info in wheel.members.items()), reverse=True)
        return WheelFacts(
            path=path,
            name=wheel.name,
            size=path.stat().st_size,
            members=len(wheel.members),
            tags=tuple(sorted(map(str, tags))),
            project=str(metadata["Name"]),
            version=str(metadata["Version"]),
            sbom=wheel.read(sbom) if sbom in wheel.members else None,
            largest=tuple((name, size) for size, name in packed[:10]),
            elf=tuple(_elf_files(wheel, device)),
        )


def _elf_files(wheel: Wheel, device: Capability) -> Iterator[ElfFile]:
    with tempfile.TemporaryDirectory(prefix="vllm-spark-") as folder:
        for name in sorted(filter(_MAYBE_ELF.search, wheel.members)):
            if next(wheel.chunks(name), b"")[:4] != b"\x7fELF":
                continue
            info = wheel.members[name]
            scratch = Path(folder, "member")
            require_space(scratch, info.file_size)
            with scratch.open("wb") as file:
                file.writelines(wheel.chunks(name))
            with FileSource(scratch, name) as source:
                report, found = inspect_extension(source, device)
            yield ElfFile(report, info.compress_size, found)
