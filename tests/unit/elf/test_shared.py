import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_spark.distro.elf.report import inspect_extension
from vllm_spark.distro.elf.shared import _STABLE_PRIVATE, _TORCH_CXX, read_shared_object
from vllm_spark.distro.elf.source import Edit, EditedSource, FileSource
from vllm_spark.distro.elf.target import Capability, Support
from vllm_spark.errors import ArtefactError

Open = Callable[[Path], FileSource]
Make = Callable[[bytes], FileSource]


@pytest.mark.parametrize(
    ("file", "verdict", "kernels"),
    [
        ("many.so", Support.NATIVE, {Support.NATIVE: 3, Support.ABSENT: 1}),
        ("suffixes.so", Support.NATIVE, {Support.NATIVE: 3}),
        ("speed.so", Support.JIT, {Support.JIT: 1}),
    ],
)
def test_verdicts(data: Path, opened: Open, file: str, verdict: Support, kernels: dict[Support, int]) -> None:
    report, found = inspect_extension(opened(data / file), Capability(12, 1))
    assert (report.verdict, report.kernels, report.machine) == (verdict, kernels, "x86_64")
    assert len(found) == sum(kernels.values())


def test_absent_for_an_older_device(data: Path, opened: Open) -> None:
    report, _ = inspect_extension(opened(data / "speed.so"), Capability(7, 5))
    assert (report.verdict, report.unusable) == (Support.ABSENT, {"compute_80": 1, "sm_80": 1})


@pytest.mark.parametrize("content", [b"", b"hello", b"\x7fELF", b"\x7fELF\x02\x01\x01" + bytes(57)])
def test_not_elf(from_bytes: Make, content: bytes) -> None:
    with pytest.raises(ArtefactError, match="not a readable ELF file"):
        read_shared_object(from_bytes(content))


def test_32_bit(from_bytes: Make, data: Path) -> None:
    content = bytearray((data / "many.so").read_bytes())
    content[4] = 1
    with pytest.raises(ArtefactError, match="ELF file"):
        read_shared_object(from_bytes(bytes(content)))


@pytest.mark.parametrize("cut", [100, 2000, 9000, 13_900])
def test_truncated(from_bytes: Make, data: Path, cut: int) -> None:
    with pytest.raises(ArtefactError):
        read_shared_object(from_bytes((data / "many.so").read_bytes()[:cut]))


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [(11, 0x20, 1 << 40), (0x6FFFFFFE, 0x2C, 0xFFFFFFFF), (1, 0x20, 1 << 62)],  # .dynsym size, verneed count, code
)
def test_counts_beyond_the_file(from_bytes: Make, data: Path, kind: int, field: int, value: int) -> None:
    """A reader that believed them would not come back."""
    content = bytearray((data / "unstable.so").read_bytes())
    (table,) = struct.unpack_from("<Q", content, 0x28)
    count = struct.unpack_from("<H", content, 0x3C)[0]
    heads = [table + index * 64 for index in range(count)]
    head = next(at for at in heads if struct.unpack_from("<I", content, at + 4)[0] == kind)
    struct.pack_into("<Q" if field == 0x20 else "<I", content, head + field, value)
    with pytest.raises(ArtefactError, match=r"section \d+ leaves the file"):
        read_shared_object(from_bytes(bytes(content)))


def test_registration_record_that_points_elsewhere(data: Path, opened: Open) -> None:
    """A container that is gone would be found by the CUDA runtime only when the extension is imported."""
    source = opened(data / "many.so")
    first, second = read_shared_object(source).containers
    merged = Edit(first.offset, second.offset + second.size - first.offset, (source.read(first.offset, 8),))
    with pytest.raises(ArtefactError, match="registration record 1 points at"):
        read_shared_object(EditedSource(source, [merged]))


@pytest.mark.parametrize(
    ("symbol", "torch"),
    [
        ("_ZN3c105ErrorC1ENS_14SourceLocationE", True),
        ("_ZNK2at6Tensor4sizeEl", True),
        ("_ZN5torch3jit6ModuleC1Ev", True),
        ("_Z3fooRKN2at6TensorE", True),
        ("_ZNSt6vectorIN3c106SymIntESaIS1_EED1Ev", True),
        ("_ZNSt13runtime_errorC1EPKc", False),
        ("_ZN3cat3dogEv", False),
        ("aoti_torch_empty_strided", False),
        ("cudaLaunchKernel", False),
    ],
)
def test_torch_cxx_symbols(symbol: str, torch: bool) -> None:
    assert bool(_TORCH_CXX.match(symbol)) is torch


@pytest.mark.parametrize(
    ("symbol", "stable"),
    [("_Py_NoneStruct", True), ("_Py_Dealloc", True), ("_PyArg_ParseTuple_SizeT", True), ("_PyLong_AsInt", False)],
)
def test_python_symbols(symbol: str, stable: bool) -> None:
    assert bool(_STABLE_PRIVATE.fullmatch(symbol)) is stable


def test_a_machine_that_nobody_knows(data: Path, tmp_path: Path) -> None:
    raw = bytearray((data / "many.so").read_bytes())
    raw[19] = 0xEE  # high byte of e_machine
    path = tmp_path / "odd.so"
    path.write_bytes(raw)
    with pytest.raises(ArtefactError, match="unknown machine"), FileSource(path) as source:
        read_shared_object(source)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["many.so", "suffixes.so", "speed.so"]), st.data())
def test_any_damage_is_an_error_of_ours_or_harmless(data: Path, tmp_path: Path, file: str, draw: st.DataObject) -> None:
    content = bytearray((data / file).read_bytes())
    for _ in range(draw.draw(st.integers(1, 4))):
        content[draw.draw(st.integers(0, len(content) - 1))] = draw.draw(st.integers(0, 255))
    path = tmp_path / file
    path.write_bytes(content)
    with FileSource(path) as source:
        try:
            inspect_extension(source, Capability(12, 1))
        except ArtefactError as err:
            assert str(path) in str(err)  # noqa: PT017 - many inputs are harmless, and then there is no error
