"""The CUDA driver takes blanked fat binaries as it takes stock ones: same kernels, same refusals, same results."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_spark.distro.elf.blank import plan_blanking
from vllm_spark.distro.elf.kernels import kernels
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import EditedSource, FileSource, Source
from vllm_spark.distro.elf.target import Capability, Support

pytestmark = pytest.mark.gpu
DATA = Path(__file__).resolve().parents[2] / "data" / "wheel"
FILES = ("many.so", "suffixes.so", "speed.so", "elsewhere.so")
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


class Driver:
    """The few calls of libcuda that loading and launching need; a failing one that must not fail raises."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.must("cuInit", 0)
        device = ctypes.c_int()
        self.must("cuDeviceGet", ctypes.byref(device), 0)
        self.capability = Capability(self._attribute(_MAJOR, device), self._attribute(_MINOR, device))
        context = ctypes.c_void_p()
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.must("cuCtxSetCurrent", context)

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self.must("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    def call(self, name: str, *arguments: object) -> int:
        return int(getattr(self.cuda, name)(*arguments))

    def must(self, name: str, *arguments: object) -> None:
        assert self.call(name, *arguments) == 0, name

    def load(self, image: bytes, names: list[str]) -> tuple[int, dict[str, int], dict[str, ctypes.c_void_p]]:
        """Status of loading a fat binary, then of each kernel, and the kernels that can be launched."""
        library = ctypes.c_void_p()
        status = self.call("cuLibraryLoadData", ctypes.byref(library), image, None, None, 0, None, None, 0)
        found: dict[str, int] = {}
        functions: dict[str, ctypes.c_void_p] = {}
        for name in names if status == 0 else ():
            kernel, function = ctypes.c_void_p(), ctypes.c_void_p()
            found[name] = self.call("cuLibraryGetKernel", ctypes.byref(kernel), library, name.encode())
            if found[name] == 0:
                found[name] = self.call("cuKernelGetFunction", ctypes.byref(function), kernel)
                functions[name] = function
        return status, found, functions

    def add_one(self, function: ctypes.c_void_p, values: list[float]) -> list[float]:
        count = len(values)
        host = (ctypes.c_float * count)(*values)
        memory = ctypes.c_uint64()
        self.must("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(count * 4))
        self.must("cuMemcpyHtoD_v2", memory, host, ctypes.c_size_t(count * 4))
        length = ctypes.c_int(count)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(length))
        self.must("cuLaunchKernel", function, 1, 1, 1, count, 1, 1, 0, None, arguments, None)
        self.must("cuMemcpyDtoH_v2", host, memory, ctypes.c_size_t(count * 4))
        self.must("cuMemFree_v2", memory)
        return list(host)


@pytest.fixture(scope="module")
def driver() -> Driver:
    return Driver()


def fat_binaries(source: Source) -> Iterator[bytes]:
    for one in read_shared_object(source).containers:
        yield source.read(one.offset, one.size)


@pytest.mark.parametrize("file", FILES)
def test_same_kernels_and_same_refusals(driver: Driver, file: str) -> None:
    with FileSource(DATA / file) as source:
        containers = read_shared_object(source).containers
        plan = plan_blanking(containers, driver.capability)
        blanked = EditedSource(source, plan.edits)
        assert plan.edits
        for container, old, new in zip(containers, fat_binaries(source), fat_binaries(blanked), strict=True):
            names = sorted({name for entry in container.entries for name in kernels(source, entry)})
            before, after = driver.load(old, names), driver.load(new, names)
            assert after[:2] == before[:2]
            usable = any(
                entry.target.runs_on(driver.capability, entry.form) is not Support.ABSENT for entry in container.entries
            )
            assert (before[0] == 0 and set(before[1].values()) == {0}) is usable


def test_a_kernel_computes_the_same(driver: Driver) -> None:
    with FileSource(DATA / "many.so") as source:
        edits = plan_blanking(read_shared_object(source).containers, driver.capability).edits
        values = [float(number) for number in range(32)]
        for view in (source, EditedSource(source, edits)):
            _, _, functions = driver.load(next(fat_binaries(view)), ["add_one"])
            assert driver.add_one(functions["add_one"], values) == [value + 1 for value in values]
