"""Reads and validates every shard header of a checkpoint before a single weight is touched.

The format is safetensors (8 bytes of little-endian header length, a JSON header, the data). It is parsed by
hand because each refusal has to name the file, the key and the offset, and because nothing may be mapped or
allocated before the whole checkpoint is known to be whole.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_spark.errors import ArtefactError, ResourceError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DTYPE_BITS", "INDEX_NAME", "Checkpoint", "CheckpointError", "Shard", "Tensor", "parse_header", "scan"]

INDEX_NAME = "model.safetensors.index.json"
MAX_HEADER = 100_000_000  # the limit of the reference implementation
MAX_INDEX = 1 << 30
_DTYPES = {
    4: "F4",
    6: "F6_E2M3 F6_E3M2",
    8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
    16: "I16 U16 F16 BF16",
    32: "I32 U32 F32",
    64: "I64 U64 F64 C64",
}
DTYPE_BITS = {name: bits for bits, names in _DTYPES.items() for name in names.split()}


class CheckpointError(ArtefactError):
    """A checkpoint that is not whole or not what it claims to be."""

    def __init__(self, what: str, *, file: Path | str, key: str = "", offset: int | None = None) -> None:
        where = str(file) + (f": key {key!r}" if key else "") + (f" at byte {offset}" if offset is not None else "")
        super().__init__(what, where=where, hint="download the file again and compare its SHA-256 with the publisher's")
        self.key = key
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a shard; `start` is its first byte counted from the beginning of the file."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    path: Path

    @property
    def stop(self) -> int:
        """The first byte after it."""
        return self.start + self.nbytes


@dataclass(frozen=True, slots=True)
class Shard:
    """One file with its tensors in file order and the identity it had when the header was read."""

    path: Path
    identity: tuple[int, int, int, int]
    header_sha256: str
    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.identity[2]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose shards are all whole; keys are unique over them."""

    folder: Path
    shards: tuple[Shard, ...]
    tensors: dict[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def digest(self) -> str:
        """SHA-256 over names, sizes and header hashes: changes whenever a shard's layout does."""
        total = hashlib.sha256()
        for shard in sorted(self.shards, key=lambda item: item.path.name):
            total.update(f"{shard.path.name}\0{shard.size}\0{shard.header_sha256}\n".encode())
        return total.hexdigest()


def file_identity(fd: int) -> tuple[int, int, int, int]:
    """Device, inode, size and time of last change: differs when a file is replaced or written to."""
    stat = os.fstat(fd)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice!r} appears twice")
    return made


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _load_json(raw: bytes, path: Path, what: str) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as err:
        raise CheckpointError(f"{what} is not valid JSON ({err})", file=path) from err
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} is not a JSON object", file=path)
    return value


def _sizes(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(item) is int and item >= 0 for item in value):
        return tuple(value)
    return None


def _tensor(key: str, entry: object, base: int, path: Path) -> Tensor:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError("an entry needs exactly dtype, shape and data_offsets", file=path, key=key)
    dtype, shape, offsets = entry["dtype"], _sizes(entry["shape"]), _sizes(entry["data_offsets"])
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise CheckpointError(f"unknown dtype {str(dtype)[:40]!r}", file=path, key=key)
    if shape is None:
        raise CheckpointError("shape is not a list of sizes", file=path, key=key)
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError("data_offsets is not [begin, end]", file=path, key=key)
    begin, end = offsets
    if math.prod(shape) * bits != (end - begin) * 8:
        raise CheckpointError(
            f"{dtype} of shape {list(shape)} does not fill the {end - begin} bytes that data_offsets gives",
            file=path, key=key, offset=base + begin,
        )  # fmt: skip
    return Tensor(key, dtype, shape, base + begin, end - begin, path)


def parse_header(raw: bytes, path: Path, size: int) -> tuple[Tensor, ...]:
    """The tensors that header `raw` (without its length prefix) describes, in file order.

    Args:
        raw: the JSON bytes.
        path: the shard, for messages.
        size: bytes of the whole file; the data must end exactly there.

    Raises:
        CheckpointError: the header is malformed, or tensors overlap, leave gaps or do not end with the file.
    """
    header = _load_json(raw, path, "the header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError("__metadata__ is not a map of strings", file=path)
    base = 8 + len(raw)
    tensors = sorted(
        (_tensor(key, entry, base, path) for key, entry in header.items()), key=lambda t: (t.start, t.stop)
    )
    at = base
    for tensor in tensors:
        if tensor.start != at:
            what = "overlaps the tensor before it" if tensor.start < at else "leaves unused bytes before it"
            raise CheckpointError(what, file=path, key=tensor.key, offset=tensor.start)
        at = tensor.stop
        if at > size:
            raise CheckpointError(
                f"ends at byte {at} but the file has {size}: the file is cut short",
                file=path, key=tensor.key, offset=tensor.start,
            )  # fmt: skip
    if at != size:
        raise CheckpointError(f"{size - at} bytes follow the last tensor", file=path, offset=at)
    return tuple(tensors)


def read_shard(path: Path) -> Shard:
    """Read and validate one shard's header.

    Raises:
        CheckpointError: the shard is malformed.
        ResourceError: it cannot be opened or read.
    """
    try:
        with path.open("rb") as file:
            identity = file_identity(file.fileno())
            size = identity[2]
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or size < 8 + length:
                what = f"the file has {size} bytes, too few for a header of {length}: it is cut short or no safetensors"
                raise CheckpointError(what, file=path, offset=0)
            if length > MAX_HEADER:
                raise CheckpointError(f"a header of {length} bytes (limit {MAX_HEADER})", file=path, offset=0)
            raw = file.read(length)
    except OSError as err:
        raise ResourceError(f"cannot be read ({err.strerror})", where=str(path), hint="check path and rights") from err
    if len(raw) != length:
        raise CheckpointError("the header ended early while it was read", file=path, offset=8 + len(raw))
    return Shard(path, identity, hashlib.sha256(raw).hexdigest(), parse_header(raw, path, size))


def _read_index(path: Path) -> dict[str, str]:
    if path.stat().st_size > MAX_INDEX:
        raise CheckpointError("the index is larger than 1 GiB", file=path)
    names = _load_json(path.read_bytes(), path, "the index").get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError("the index has no weight_map", file=path)
    for key, name in names.items():
        if not isinstance(name, str) or "/" in name or name in ("", ".", ".."):
            raise CheckpointError(f"the index names {name!r}, which is no file of this folder", file=path, key=key)
    return names


def _check_index(index: Path, names: dict[str, str], tensors: dict[str, Tensor]) -> None:
    for key, name in names.items():
        found = tensors.get(key)
        if found is None or found.path.name != name:
            raise CheckpointError(f"the index says {name} holds it, but it does not", file=index, key=key)
    for key, tensor in tensors.items():
        if key not in names:
            raise CheckpointError("holds a tensor that the index does not list", file=tensor.path, key=key)


def scan(folder: Path) -> Checkpoint:
    """Read and validate all shard headers below `folder`, and the index against them.

    With an index only the files it names count; without one, all `*.safetensors` of the folder do.

    Raises:
        CheckpointError: a shard or the index is malformed, they contradict each other, or there is no shard.
        ResourceError: a file cannot be read.
    """
    index = folder / INDEX_NAME
    try:
        names = _read_index(index) if index.is_file() else {}
    except OSError as err:
        raise ResourceError(f"cannot be read ({err.strerror})", where=str(index), hint="check path and rights") from err
    files = [folder / name for name in sorted(set(names.values()))] or sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError("no *.safetensors file", file=folder)
    shards = tuple(read_shard(path) for path in files)
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        for tensor in shard.tensors:
            other = tensors.setdefault(tensor.key, tensor)
            if other is not tensor:
                raise CheckpointError(
                    f"is also in {other.path.name}", file=shard.path, key=tensor.key, offset=tensor.start
                )
    if names:
        _check_index(index, names, tensors)
    return Checkpoint(folder, shards, tensors)
