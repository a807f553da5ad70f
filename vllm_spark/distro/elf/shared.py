"""A shared object: its fat binaries, and what it needs from the system that loads it."""

from __future__ import annotations

import io
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from vllm_spark.distro.elf.fatbin import Container, containers
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.elf.source import Source

__all__ = ["Abi", "SharedObject", "read_shared_object"]

_FATBIN_SECTIONS = {".nv_fatbin": False, "__nv_relfatbin": True}  # name: is the code relocatable
_TYPES = ("ET_REL", "ET_EXEC", "ET_DYN")
_WRAPPERS = ".nvFatBinSegment"
_WRAPPER = struct.Struct("<IIQQ")  # magic, version, address of the container, address of more of them or 0
_WRAPPER_MAGIC = 0x466243B1
_RELA = struct.Struct("<QQq")
_VERNEED_SIZE = 16  # bytes of one record
_RELATIVE = {"EM_X86_64": 8, "EM_AARCH64": 1027}
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)")
# A mangled nested name whose first part is one of libtorch's C++ namespaces, anywhere in the symbol.
_TORCH_CXX = re.compile(r"_Z\w*N[VKRO]*(?:3c10|2at|5torch|6caffe2)\d")
_TORCH_C = re.compile(r"(?:aoti_torch|torch)_[a-z]")
# Underscored names of CPython that its stable ABI exports nevertheless (Misc/stable_abi.toml, Python 3.14).
_STABLE_PRIVATE = re.compile(
    r"_Py_(?:NoneStruct|TrueStruct|FalseStruct|EllipsisObject|NotImplementedStruct|Dealloc|RefTotal|IncRef|DecRef|"
    r"NegativeRefcount|SwappedOp|CheckRecursiveCall|BuildValue_SizeT|VaBuildValue_SizeT)"
    r"|_PyArg_\w+_SizeT|_PyObject_(?:CallFunction|CallMethod)_SizeT|_PyObject_(?:New|NewVar|GC_New|GC_NewVar)"
    r"|_PyErr_BadInternalCall|_PyWeakref_\w+|_PyState_AddModule|_PyImport_\w+|_PyExc_\w+"
)


@dataclass(frozen=True)
class Abi:
    """What a shared object asks of the process it is loaded into.

    Attributes:
        torch: `stable` (C functions of the stable ABI only), `unstable` (C++ symbols of libtorch) or `none`.
        torch_cxx: the C++ symbols that make it unstable, sorted.
        private_python: names of CPython outside its stable ABI.
        glibc: the oldest glibc that has all the versions needed, `(0, 0)` when none is named.
    """

    torch: str
    torch_cxx: tuple[str, ...]
    private_python: tuple[str, ...]
    glibc: tuple[int, int]


@dataclass(frozen=True)
class SharedObject:
    """What one shared object holds and needs."""

    name: str
    size: int
    machine: str
    containers: tuple[Container, ...]
    abi: Abi


class _Raw(io.RawIOBase):
    """A `Source` as the binary stream that pyelftools reads."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._source.size)[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed has no narrower protocol
        count = max(0, min(len(buffer), self._source.size - self._at))
        buffer[:count] = self._source.read(self._at, count)
        self._at += count
        return count


def read_shared_object(source: Source) -> SharedObject:
    """Read the structure of a shared object; no image is decompressed.

    Raises:
        ArtefactError: not a 64-bit little-endian ELF file, or its fat binaries are malformed, or a registration
            record (`.nvFatBinSegment`) points elsewhere than at a fat binary.
    """
    try:
        elf = ELFFile(io.BufferedReader(_Raw(source)))
        if elf.elfclass != 64 or not elf.little_endian:
            raise ArtefactError("not a 64-bit little-endian ELF file", where=source.name)
        if elf["e_type"] not in _TYPES:
            raise ArtefactError(f"not a readable ELF file (type {elf['e_type']})", where=source.name)
        _check_sections(source, elf)
        found: list[Container] = []
        for name, relocatable in _FATBIN_SECTIONS.items():
            section = elf.get_section_by_name(name)
            if section is not None:
                place = section["sh_offset"], section["sh_size"]
                found += containers(source, *place, len(found), relocatable=relocatable)
        _check_wrappers(source, elf, {_address(elf, one.offset) for one in found})
        return SharedObject(source.name, source.size, _machine(elf), tuple(found), _abi(elf))
    except (ELFError, struct.error, UnicodeDecodeError) as err:
        raise ArtefactError(f"not a readable ELF file ({err})", where=source.name) from err


def _check_sections(source: Source, elf: ELFFile) -> None:
    """Sizes and counts must fit the file, for pyelftools would go on for as long as they say."""
    for index in range(elf.num_sections()):
        head = elf._get_section_header(index)  # noqa: SLF001 - the public way already believes the sizes
        size = 0 if head["sh_type"] in ("SHT_NOBITS", "SHT_NULL") else head["sh_size"]
        many = head["sh_type"] == "SHT_GNU_verneed" and head["sh_info"] * _VERNEED_SIZE > size
        if (head["sh_offset"] + size > source.size and size) or many:
            raise ArtefactError(f"section {index} leaves the file", where=source.name)


def _address(elf: ELFFile, offset: int) -> int:
    """Where the byte at `offset` of the file stands in memory, -1 for one that is not loaded."""
    for segment in elf.iter_segments(type="PT_LOAD"):
        start = segment["p_offset"]
        if start <= offset < start + segment["p_filesz"]:
            return int(segment["p_vaddr"] + offset - start)
    return -1


def _check_wrappers(source: Source, elf: ELFFile, starts: set[int]) -> None:
    """Every record that is registered with the CUDA runtime must point at a container."""
    section = elf.get_section_by_name(_WRAPPERS)
    if section is None or elf["e_type"] != "ET_DYN":
        return
    relocated = dict(_relative(elf, section["sh_addr"], section["sh_size"]))
    for index, (magic, _, stored, _) in enumerate(_WRAPPER.iter_unpack(section.data())):
        address = relocated.get(section["sh_addr"] + index * _WRAPPER.size + 8, stored)
        if magic != _WRAPPER_MAGIC or address not in starts:
            raise ArtefactError(
                f"registration record {index} points at {address:#x}, where no fat binary starts", where=source.name
            )


def _machine(elf: ELFFile) -> str:
    """Its name as elf.h has it; pyelftools leaves a number that it does not know as it is."""
    machine = elf["e_machine"]
    if not isinstance(machine, str):
        raise ELFError(f"unknown machine {machine}")
    return machine


def _relative(elf: ELFFile, start: int, size: int) -> Iterator[tuple[int, int]]:
    """Place and value of the relative relocations in `size` bytes at address `start`."""
    kind = _RELATIVE.get(elf["e_machine"])
    table = elf.get_section_by_name(".rela.dyn")
    if kind is None or table is None:
        return
    for place, info, addend in _RELA.iter_unpack(table.data()):
        if info == kind and start <= place < start + size:
            yield place, addend


def _abi(elf: ELFFile) -> Abi:
    undefined = _undefined(elf)
    cxx = tuple(name for name in undefined if _TORCH_CXX.match(name))
    torch = "unstable" if cxx else "stable" if any(_TORCH_C.match(name) for name in undefined) else "none"
    private = tuple(name for name in undefined if name.startswith("_Py") and not _STABLE_PRIVATE.fullmatch(name))
    versions: set[str] = set()
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, wanted in section.iter_versions():
                versions.update(one.name for one in wanted)
    glibc = [(int(m[1]), int(m[2])) for m in map(_GLIBC.match, versions) if m]
    return Abi(torch, cxx, private, max(glibc, default=(0, 0)))


def _undefined(elf: ELFFile) -> list[str]:
    table = elf.get_section_by_name(".dynsym")
    if not isinstance(table, SymbolTableSection):
        return []
    return sorted({symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] == "SHN_UNDEF"} - {""})
