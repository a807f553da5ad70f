"""Reading the layers of an image one after the other, as whoever runs it will find them laid on one another."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import zlib
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, cast

import zstandard

from vllm_spark import console
from vllm_spark.errors import ArtefactError, IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.image.layout import Layer, Stored

__all__ = ["SITE", "File", "Tree", "walk"]

_OURS = "cache"  # the folder that our first layer makes
SITE = re.compile(r"opt/vllm-spark/lib/python3\.\d+/site-packages/")
# Contents that are kept (RECORD) or hashed (our two distributions and their metadata).
_RECORD = re.compile(SITE.pattern + r"[^/]+\.dist-info/RECORD")
_HASHED = re.compile(SITE.pattern + r"vllm")


@dataclass(frozen=True)
class File:
    """One file of the image. `sha256` is empty where nobody asks for it."""

    size: int
    mode: int
    layer: int
    sha256: bytes = b""


@dataclass
class Tree:
    """All files.

    Attributes:
        records: text of each installed distribution's RECORD, by path.
        unpacked: bytes of the files in each layer, overwritten ones included.
        first_own: number of the first layer that is not the base's.
    """

    files: dict[str, File] = field(default_factory=dict)
    records: dict[str, bytes] = field(default_factory=dict)
    unpacked: list[int] = field(default_factory=list)
    first_own: int | None = None


def walk(image: Stored) -> Tree:
    """Read every layer.

    Raises:
        IntegrityError: a layer does not unpack to what the configuration promises.
        ArtefactError: a layer is no tar, or has a path that leaves the image.
    """
    tree = Tree()
    with console.progress("layers", sum(layer.size for layer in image.layers)) as bar:
        for number, layer in enumerate(image.layers):
            _lay(tree, number, layer)
            bar.advance(layer.size)
    return tree


def _lay(tree: Tree, number: int, layer: Layer) -> None:
    where = layer.path.name[:12]
    tree.unpacked.append(0)
    with layer.path.open("rb") as packed:
        stream = _Hashing(_decompressed(layer, packed))
        try:
            with tarfile.open(fileobj=io.BufferedReader(stream, 1 << 20), mode="r|") as archive:
                for member in archive:
                    _add(tree, number, archive, member)
            while stream.read(1 << 20):  # what follows the tar's end belongs to the digest
                pass
        except (tarfile.TarError, zlib.error, EOFError, OSError, zstandard.ZstdError) as err:
            raise ArtefactError(f"layer cannot be read: {err}", where=where, hint="copy the image again") from err
    if f"sha256:{stream.hasher.hexdigest()}" != layer.diff_id:
        raise IntegrityError("layer unpacks to other bytes than promised", where=where, hint="build the image again")


class _Hashing(io.RawIOBase):
    """Passes a stream on and hashes it."""

    def __init__(self, source: IO[bytes]) -> None:
        super().__init__()
        self.source = source
        self.hasher = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self.source.read(len(buffer))
        self.hasher.update(data)
        buffer[: len(data)] = data
        return len(data)


def _decompressed(layer: Layer, packed: IO[bytes]) -> IO[bytes]:
    if "gzip" in layer.media_type:
        return cast("IO[bytes]", gzip.GzipFile(fileobj=packed))
    if "zstd" in layer.media_type:
        return zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    return packed


def _add(tree: Tree, number: int, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    path = member.name.removeprefix("./").strip("/")
    if ".." in path.split("/"):
        raise ArtefactError("a path leaves the image", where=member.name, hint="do not use this image")
    folder, _, name = path.rpartition("/")
    if name.startswith(".wh."):
        _white_out(tree, number, folder, name.removeprefix(".wh."))
        return
    if member.isdir() and path == _OURS and tree.first_own is None:
        tree.first_own = number
    if not member.isfile():
        return
    tree.unpacked[number] += member.size
    content = archive.extractfile(member)
    sha256 = b""
    if content is not None and _RECORD.fullmatch(path):
        tree.records[path] = content.read()
        sha256 = hashlib.sha256(tree.records[path]).digest()
    elif content is not None and _HASHED.match(path):
        sha256 = _digest(content)
    tree.files[path] = File(member.size, member.mode, number, sha256)


def _digest(content: IO[bytes]) -> bytes:
    hasher = hashlib.sha256()
    while block := content.read(1 << 20):
        hasher.update(block)
    return hasher.digest()


def _white_out(tree: Tree, number: int, folder: str, name: str) -> None:
    """Remove what layer `number` says is gone of the layers below it; `.wh..wh..opq` empties a whole folder."""
    gone = f"{folder}/" if name == ".wh..opq" else f"{folder}/{name}".lstrip("/")
    for path in list(_below(tree, gone)):
        if tree.files[path].layer < number:
            del tree.files[path]


def _below(tree: Tree, path: str) -> Iterator[str]:
    folder = path if path.endswith("/") else f"{path}/"
    return (known for known in tree.files if known == path or known.startswith(folder))
