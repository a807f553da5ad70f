"""Names of the kernels in an image, and the target that the assembler noted in it."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, NamedTuple

from vllm_spark.distro.elf.payload import payload
from vllm_spark.distro.elf.target import Form
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.elf.fatbin import Entry
    from vllm_spark.distro.elf.source import Source

__all__ = ["assembled_for", "cubin_kernels", "cubin_variables", "kernels", "ptx_kernels", "ptx_variables"]

_SYMTAB = 2
_OBJECT = 1
_FUNC = 2
_ENTRY_BIT = 0x10  # st_other: the function is a kernel
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PTX_ENTRY = re.compile(rb"\.entry\s+([\w$%.]+)")
# A variable of the module. What follows its name: array bounds, then its value or the end.
_PTX_VARIABLE = re.compile(
    rb"^\s*(?:\.(?:visible|weak|common)\s+)?\.(?:global|const)\b[^;={]*?([\w$%]+)\s*(?:\[[^\]]*\]\s*)*(?:=|;)",
    re.MULTILINE,
)
_ARCH = re.compile(rb"-arch\s+(sm_\d+[af]?)\s")


class _Section(NamedTuple):
    name: bytes
    type: int
    offset: int
    size: int
    link: int


def kernels(source: Source, entry: Entry) -> tuple[str, ...]:
    """The kernels of an image, sorted; none for a form that we cannot read.

    Raises:
        ArtefactError: the payload is damaged.
    """
    if entry.form is Form.OTHER:
        return ()
    data = payload(source, entry)
    if entry.form is Form.PTX:
        return ptx_kernels(data)
    try:
        return cubin_kernels(data)
    except (struct.error, IndexError, ValueError) as err:
        where = f"{source.name} byte {entry.offset:#x}"
        raise ArtefactError(f"{entry.label} image is no cubin ({err})", where=where) from err


def ptx_kernels(text: bytes) -> tuple[str, ...]:
    """Entry points defined in a PTX module."""
    return tuple(sorted({name.decode() for name in _PTX_ENTRY.findall(text)}))


def ptx_variables(text: bytes) -> tuple[str, ...]:
    """Device and constant variables defined in a PTX module; the host can ask for any of them by name."""
    return tuple(sorted({name.decode() for name in _PTX_VARIABLE.findall(text)}))


def cubin_kernels(data: bytes) -> tuple[str, ...]:
    """Kernels defined in a cubin: the function symbols with the entry bit.

    Raises:
        struct.error, IndexError, ValueError: it is not an ELF file.
    """
    return tuple(sorted({name for name, kind, other in _defined(data) if kind == _FUNC and other & _ENTRY_BIT}))


def cubin_variables(data: bytes) -> tuple[str, ...]:
    """Variables defined in a cubin.

    Raises:
        struct.error, IndexError, ValueError: it is not an ELF file.
    """
    return tuple(sorted({name for name, kind, _ in _defined(data) if kind == _OBJECT}))


def _defined(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Name, type and `st_other` of each symbol that has a section."""
    sections = list(_sections(data))
    for table in sections:
        if table.type != _SYMTAB:
            continue
        strings = sections[table.link].offset
        for name, info, other, index, _, _ in _SYMBOL.iter_unpack(data[table.offset : table.offset + table.size]):
            if index:
                yield _string(data, strings + name).decode(), info & 15, other


def assembled_for(data: bytes) -> str | None:
    """The `-arch` that ptxas noted in a cubin's `.note.nv.tkinfo`; None where an older one left no note."""
    for section in _sections(data):
        if section.name == b".note.nv.tkinfo":
            found = _ARCH.search(data, section.offset, section.offset + section.size)
            return found[1].decode() if found else None
    return None


def _sections(data: bytes) -> Iterator[_Section]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF header")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    if size != _SECTION.size or table + count * size > len(data):
        raise ValueError("section table leaves the file")
    heads = list(_SECTION.iter_unpack(data[table : table + count * size]))
    names = heads[names_index][4]
    for name, kind, _, _, offset, length, link, _, _, _ in heads:
        yield _Section(_string(data, names + name), kind, offset, length, link)


def _string(data: bytes, at: int) -> bytes:
    return data[at : data.index(b"\0", at)]
