"""An image's bytes as the compiler made them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import zstandard

from vllm_spark.distro.elf.fatbin import Compression
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from vllm_spark.distro.elf.fatbin import Entry
    from vllm_spark.distro.elf.source import Source

__all__ = ["LIMIT", "lz4_block", "payload", "ptxas_options"]

LIMIT = 1 << 30  # bytes; the largest image of vLLM 0.33.0 has 65 million
_MIN_MATCH = 4
_OPTIONS_FIELD = 20  # of the header: where the block about options starts in it, 0 for none


def payload(source: Source, entry: Entry) -> bytes:
    """The decompressed payload of `entry`.

    Raises:
        ArtefactError: unknown or damaged compression, or a declared size beyond `LIMIT`.
    """
    where = f"{source.name} byte {entry.offset:#x}"
    if max(entry.raw_size, entry.payload_size) > LIMIT:
        raise ArtefactError(f"{entry.label} image says it has {entry.raw_size} bytes", where=where)
    stored = source.read(entry.payload_offset, entry.payload_size)
    if entry.compression is Compression.NONE:
        return stored
    try:
        data = _expand(stored, entry)
    except (zstandard.ZstdError, IndexError, ValueError) as err:
        raise ArtefactError(f"damaged {entry.label} image ({err})", where=where) from err
    if len(data) != entry.raw_size:
        raise ArtefactError(f"{entry.label} image has {len(data)} bytes, not {entry.raw_size}", where=where)
    return data


def ptxas_options(source: Source, entry: Entry) -> str:
    """What the assembler was told beside the target (`-Xptxas`), as noted for the driver in a PTX image's header.

    Raises:
        ArtefactError: the note leaves the header.
    """
    header = source.read(entry.offset, entry.header_size)
    (block,) = struct.unpack_from("<I", header, _OPTIONS_FIELD)
    if not block:
        return ""
    if block + 8 <= len(header):
        start, length = struct.unpack_from("<II", header, block)
        if start + length <= len(header):
            return header[start : start + length].rstrip(b"\0").decode("utf-8", "replace")
    raise ArtefactError(f"damaged header of a {entry.label} image", where=f"{source.name} byte {entry.offset:#x}")


def _expand(stored: bytes, entry: Entry) -> bytes:
    if entry.compression is Compression.ZSTD:
        if zstandard.frame_content_size(stored) > entry.raw_size:  # the decoder would believe the frame
            raise ValueError(f"its frame says more than {entry.raw_size} bytes")
        return zstandard.ZstdDecompressor().decompress(stored, max_output_size=entry.raw_size)
    if entry.compression is Compression.LZ4:
        return lz4_block(stored, entry.raw_size)
    raise ValueError(f"unknown compression, flags {entry.flags:#x}")


def lz4_block(data: bytes, limit: int) -> bytes:
    """Decode one LZ4 block (LZ4 Block Format Description, 2022) of at most `limit` bytes.

    Raises:
        IndexError, ValueError: it is damaged or longer.
    """
    out = bytearray()
    at = 0
    while at < len(data):
        token = data[at]
        count, at = _length(data, at + 1, token >> 4)
        if at + count > len(data):
            raise ValueError("literals leave the block")
        out += data[at : at + count]
        at += count
        if at == len(data):
            break
        distance = data[at] | data[at + 1] << 8
        count, at = _length(data, at + 2, token & 15)
        count += _MIN_MATCH
        if not 0 < distance <= len(out):
            raise ValueError("match before the start")
        if len(out) + count > limit:
            raise ValueError(f"more than {limit} bytes")
        repeats = out[-distance:] * (count // distance + 1)
        out += repeats[:count]
    if len(out) > limit:
        raise ValueError(f"more than {limit} bytes")
    return bytes(out)


def _length(data: bytes, at: int, start: int) -> tuple[int, int]:
    if start < 15:
        return start, at
    while True:
        start += data[at]
        at += 1
        if data[at - 1] != 255:
            return start, at
