"""The patched wheel: upstream's archive with some members replaced and the rest copied as they are compressed.

One pass writes the new file. A member that does not change is neither inflated nor compressed again; its hash comes
from the old RECORD, so a damaged one is found by whoever verifies either file. What is inflated here is checked here.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.distro.elf.source import FileSource, chunks
from vllm_spark.distro.wheel.archive import Wheel
from vllm_spark.distro.wheel.devicecode import BlankedExtension, DeviceCode
from vllm_spark.distro.wheel.names import SHARED_OBJECT, WheelName, check_member_name
from vllm_spark.distro.wheel.record import Row, digest, encode, format_record, read_record
from vllm_spark.distro.wheel.stamp import stamp_metadata, stamp_version_file, stamp_wheel
from vllm_spark.distro.wheel.zipwriter import Packed, ZipWriter
from vllm_spark.errors import IntegrityError
from vllm_spark.paths import atomic_file, require_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vllm_spark.distro.aot.splice import Image, Supply
    from vllm_spark.distro.elf.target import Capability

__all__ = ["SBOM_NAME", "BlankedExtension", "Repacked", "repack"]

SBOM_NAME = "sboms/vllm-spark.cdx.json"  # below the metadata folder, PEP 770


@dataclass(frozen=True)
class Repacked:
    """The new wheel.

    Attributes:
        images: what became of each fat binary that the device can use; none where no compiled code was asked for.
        seconds: time by step.
    """

    path: Path
    sha256: str
    size: int
    copied: int
    rewritten: int
    blanked: tuple[BlankedExtension, ...]
    images: tuple[Image, ...]
    seconds: dict[str, float]


def repack(  # noqa: PLR0913 - keywords, one for each thing that may change
    source: Path,
    out_dir: Path,
    *,
    version: str,
    platform_tag: str,
    replaced: Mapping[str, bytes],
    added: Mapping[str, bytes] | None = None,
    sbom: bytes | None = None,
    keep_for: Capability | None = None,
    compiled: Supply | None = None,
) -> Repacked:
    """Write the wheel `source` to `out_dir` under a new version and platform tag.

    Where the package holds the `_version.py` that setuptools-scm writes, that says the new version too.

    Args:
        version: of the new wheel, such as `0.33.0+spark.1`.
        platform_tag: such as `manylinux_2_28_aarch64`; python and ABI tags stay.
        replaced: new contents of members that exist.
        added: members that do not exist yet.
        sbom: contents of `sboms/vllm-spark.cdx.json` in the metadata folder.
        keep_for: take out device code that this capability can neither load nor compile; None keeps all.
        compiled: put the machine code that it has in the place of PTX; None leaves PTX as it is.

    Raises:
        ArtefactError, IntegrityError: the source is no sound wheel, or lacks a member that is to be replaced.
        ResourceError: no space, or not writable.
    """
    started = time.monotonic()
    with Wheel(source) as wheel:
        target = wheel.name.release(version, platform_tag)
        path = out_dir / str(target)
        require_space(out_dir, source.stat().st_size + max(info.file_size for info in wheel.members.values()))
        job = _Job(wheel, target, read_record(wheel), DeviceCode(keep_for, compiled))
        job.plan(replaced, added or {}, sbom)
        sha256 = job.write(path)
    seconds = {"total": time.monotonic() - started, **job.seconds}
    blanked, images = tuple(job.device_code.blanked), tuple(job.device_code.images)
    return Repacked(path, sha256, path.stat().st_size, job.copied, job.rewritten, blanked, images, seconds)


@dataclass
class _Job:
    """One rewrite under way."""

    wheel: Wheel
    target: WheelName
    record: dict[str, Row]
    device_code: DeviceCode
    contents: dict[str, bytes] = field(default_factory=dict)  # new name -> new bytes
    rows: list[Row] = field(default_factory=list)
    copied: int = 0
    rewritten: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"device code": 0.0})

    def plan(self, replaced: Mapping[str, bytes], added: Mapping[str, bytes], sbom: bytes | None) -> None:
        """Collect the new bytes of every member that changes, before anything is written."""
        old = self.wheel.dist_info
        for signature in ("RECORD.jws", "RECORD.p7s"):
            if f"{old}/{signature}" in self.wheel.members:
                raise self.wheel.fail("the wheel is signed; a rewrite would carry a wrong signature", signature)
        if f"{old}/RECORD" in replaced:
            raise self.wheel.fail("is to be replaced, but is made anew", f"{old}/RECORD")
        for name in replaced:
            if name not in self.wheel.members:
                raise self.wheel.fail("is to be replaced, but the wheel has no such member", name)
        for name in added:
            problem = check_member_name(name) or ("exists already" if name in self.wheel.members else None)
            if problem is not None:
                raise self.wheel.fail(f"is to be added: {problem}", name)
        self.contents = {self._renamed(name): data for name, data in {**replaced, **added}.items()}
        self._stamp(f"{old}/METADATA", lambda data: stamp_metadata(data, self.wheel.name.version, self.target.version))
        self._stamp(f"{old}/WHEEL", lambda data: stamp_wheel(data, self.target.tags))
        version_file = f"{self.target.distribution}/_version.py"
        if version_file in self.wheel.members:
            self._stamp(version_file, lambda data: stamp_version_file(data, self.target.version))
        if sbom is not None:
            self.contents[f"{self.target.dist_info}/{SBOM_NAME}"] = sbom

    def _stamp(self, name: str, change: Callable[[bytes], bytes]) -> None:
        new = self._renamed(name)
        data = self.contents[new] if new in self.contents else b"".join(self._verified(name))
        self.contents[new] = change(data)

    def _renamed(self, name: str) -> str:
        old = f"{self.wheel.dist_info}/"
        return f"{self.target.dist_info}/{name.removeprefix(old)}" if name.startswith(old) else name

    def write(self, path: Path) -> str:
        """Write the wheel, whole or not at all; returns its SHA-256."""
        with atomic_file(path) as file:
            writer = ZipWriter(file)
            self._members(writer, path.parent)
            writer.close()
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # typeshed wants a raw file

    def _members(self, writer: ZipWriter, folder: Path) -> None:
        """Every member: the code by name, then the metadata by name, RECORD last."""
        own = f"{self.target.dist_info}/RECORD"
        old = {self._renamed(name): name for name in self.wheel.members}
        names = sorted({*old, *self.contents} - {own}, key=lambda name: (name.startswith(self.target.dist_info), name))
        with console.progress("repack", sum(info.compress_size for info in self.wheel.members.values())) as bar:
            for name in names:
                self._member(writer, name, old.get(name), folder)
                bar.advance(self.wheel.members[old[name]].compress_size if name in old else 0)
        writer.deflate(own, [format_record(self.rows, self.target.dist_info)])

    def _member(self, writer: ZipWriter, name: str, old: str | None, folder: Path) -> None:
        if name in self.contents:
            data = self.contents[name]
            self.rows.append(digest([data], name))
            writer.deflate(name, [data], executable=old is not None and self._executable(old))
            self.rewritten += 1
        elif old is not None and not self._rewrite(writer, name, old, folder):
            info = self.wheel.members[old]
            packed = Packed(
                name, info.compress_type, info.CRC, info.compress_size, info.file_size, 0, self._executable(old)
            )
            writer.copy(packed, self.wheel.raw_chunks(old))
            self.rows.append(Row(name, self.record[old].hash, self.record[old].size))
            self.copied += 1

    def _rewrite(self, writer: ZipWriter, name: str, old: str, folder: Path) -> bool:
        """Write a shared object with other device code; False when it stays as it is."""
        if not self.device_code.wanted or not SHARED_OBJECT.search(name):
            return False
        started = time.monotonic()
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".rewrite.") as scratch:
            scratch.writelines(self._verified(old))
            scratch.flush()
            with FileSource(Path(scratch.name), name) as source:
                result = self.device_code.rewrite(source)
                if result is not None:
                    self.rows.append(digest(chunks(result), name))
                    writer.deflate(name, chunks(result), executable=self._executable(old))
        self.seconds["device code"] += time.monotonic() - started
        return result is not None

    def _verified(self, name: str) -> Iterator[bytes]:
        """The bytes of a member; the iteration fails at its end when they are not those of RECORD."""
        hasher = hashlib.sha256()
        for block in self.wheel.chunks(name):
            hasher.update(block)
            yield block
        if encode(hasher.digest()) != self.record[name].hash:
            where = f"{self.wheel.path.name}: {name}"
            raise IntegrityError("differs from its hash in RECORD", where=where, hint="fetch the file again")

    def _executable(self, name: str) -> bool:
        return bool(self.wheel.members[name].external_attr >> 16 & 0o111)
