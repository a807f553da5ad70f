"""Guard of kernel/e2m1-software-fallback: compiled with the pinned nvcc, and run where it can be, on the CPU."""

from __future__ import annotations

import hashlib
import json
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pytest

from vllm_spark import paths, proc
from vllm_spark.distro import profile
from vllm_spark.distro.ext import toolchain

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent.parent / "data" / "guards"
PLAIN = ("121", "120", "90")
SUFFIXED = ("120f", "121a")
# E2M1 instructions in the machine code of stock 0.33.0 (nvcc 13.0.88, -O2), the same for both suffixed targets.
STOCK = {
    "quantization/fp4/nvfp4_quant_kernels.cu": 48,
    "quantization/fp4/activation_nvfp4_quant_fusion_kernels.cu": 16,
    "quantization/fp4/nvfp4_experts_quant.cu": 64,
    "nvfp4_kv_cache_kernels.cu": 64,
}
# On one file, whether the choice follows the target: 90a has __CUDA_ARCH_SPECIFIC__, and yet no such instruction.
OTHER = {"90a": False, "100": False, "100a": True, "120a": True, "121f": True}
SCOUT = "quantization/fp4/nvfp4_quant_kernels.cu"

# Codes by CUDA 13.0's host reference; ties, their neighbours, saturation, signed zero, NaN.
# fmt: off
TABLE: tuple[tuple[float, int], ...] = (
    (0.0, 0x0), (-0.0, 0x8), (1.4e-45, 0x0), (-1.4e-45, 0x8), (0.2499999, 0x0), (0.25, 0x0), (0.25000003, 0x1),
    (-0.25, 0x8), (0.5, 0x1), (0.74999988, 0x1), (0.75, 0x2), (1.0, 0x2), (1.2499999, 0x2), (1.25, 0x2),
    (1.2500001, 0x3), (1.5, 0x3), (1.7499999, 0x3), (1.75, 0x4), (2.0, 0x4), (2.5, 0x4), (2.5000002, 0x5),
    (3.0, 0x5), (3.4999998, 0x5), (3.5, 0x6), (4.0, 0x6), (4.9999995, 0x6), (5.0, 0x6), (5.0000005, 0x7),
    (-1.75, 0xC), (-2.5, 0xC), (-3.5, 0xE), (-5.0, 0xE), (6.0, 0x7), (6.0000005, 0x7), (7.0, 0x7), (-7.0, 0xF),
    (448.0, 0x7), (3.4e38, 0x7), (float("inf"), 0x7), (float("-inf"), 0xF),
)
# fmt: on

# -DTORCH_TARGET_VERSION: the stable ABI of torch 2.11, as upstream builds these files
FLAGS = (
    *("-std=c++20", "-O2", "--expt-relaxed-constexpr", "--expt-extended-lambda"),
    *("-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020B000000000000ULL"),
)


@dataclass(frozen=True)
class Compiled:
    """What nvcc made of one file for one target."""

    status: int
    output: str
    e2m1: int


@dataclass(frozen=True)
class Compiler:
    """nvcc on one tree; results are kept by the hash of everything that goes in."""

    tools: toolchain.Toolchain
    tree: Path
    headers: str

    @property
    def command(self) -> list[str]:
        """The command line without file and target."""
        folders = (self.tree / "csrc", self.tools.torch_include(), DATA / "include")
        return [str(self.tools.nvcc), *FLAGS, *(f"-I{folder}" for folder in folders)]

    def image(self, name: str, target: str) -> Compiled:
        """Compile csrc/`name` for sm_`target` and count the instructions."""
        source = self.tree / "csrc" / name
        key = hashlib.sha256(f"{self.headers} {self.tools.root.name} {FLAGS} {target}".encode() + source.read_bytes())
        kept = paths.cache_dir("guards", "e2m1") / f"{key.hexdigest()[:32]}.json"
        if not kept.exists():
            paths.atomic_write(kept, json.dumps(asdict(self._image(source, target, kept.with_suffix(".cubin")))))
        return Compiled(**json.loads(kept.read_text()))

    def _image(self, source: Path, target: str, cubin: Path) -> Compiled:
        done = proc.run([*self.command, "-cubin", f"-arch=sm_{target}", source, "-o", cubin], check=False)
        if done.status != 0:
            return Compiled(done.status, done.output, 0)
        text = proc.run([self.tools.nvdisasm, "-c", cubin]).text
        cubin.unlink()
        return Compiled(0, done.output, sum("E2M1" in line for line in text.splitlines()))


@pytest.fixture(scope="session")
def compiler(tree: Path) -> Compiler:
    here = [profile.load(name) for name in profile.names()]
    tools = toolchain.ensure(next(each for each in here if each.machine == platform.machine()))
    state = hashlib.sha256()
    for header in sorted((tree / "csrc").rglob("*")):
        if header.suffix in {".h", ".cuh", ".hpp"}:
            state.update(header.relative_to(tree).as_posix().encode() + header.read_bytes())
    return Compiler(tools, tree, state.hexdigest())


@pytest.fixture(scope="session")
def images(compiler: Compiler) -> dict[tuple[str, str], Compiled]:
    wanted = [(name, target) for name in STOCK for target in (*PLAIN, *SUFFIXED)]
    wanted += [(SCOUT, target) for target in OTHER]
    compiler.tools.torch_include()  # once, before two threads ask for it
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(wanted, pool.map(lambda each: compiler.image(*each), wanted), strict=True))


@pytest.mark.parametrize("target", PLAIN)
@pytest.mark.parametrize("name", STOCK)
def test_plain_targets_compile_without_the_instruction(
    images: dict[tuple[str, str], Compiled], name: str, target: str
) -> None:
    made = images[name, target]
    assert made.status == 0, made.output
    assert made.e2m1 == 0


@pytest.mark.parametrize("target", SUFFIXED)
@pytest.mark.parametrize("name", STOCK)
def test_suffixed_targets_keep_every_instruction(
    images: dict[tuple[str, str], Compiled], name: str, target: str
) -> None:
    made = images[name, target]
    assert made.status == 0, made.output
    assert made.e2m1 == STOCK[name]


@pytest.mark.parametrize(("target", "native"), OTHER.items())
def test_choice_follows_the_target(images: dict[tuple[str, str], Compiled], target: str, native: bool) -> None:
    made = images[SCOUT, target]
    assert made.status == 0, made.output
    assert (made.e2m1 > 0) == native


def _inputs() -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Words to encode: the table, all bfloat16 patterns, both sides of each step, an even sample of all floats."""
    table = np.array([value for value, _ in TABLE], np.float32).view(np.uint32)
    bf16 = np.arange(1 << 16, dtype=np.uint32) << 16
    steps = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0], np.float32).view(np.uint32)
    near = (steps[:, None] + np.arange(-64, 65, dtype=np.int64)).astype(np.uint32).ravel()
    nans = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF], np.uint32)
    sample = np.arange(37, 1 << 32, 257, dtype=np.uint64).astype(np.uint32)
    signed = [each | sign for each in (near, nans) for sign in (np.uint32(0), np.uint32(1 << 31))]
    words = np.concatenate([table, bf16, *signed, sample])
    return np.pad(words, (0, -len(words) % 8))


def test_software_encoder_is_bit_exact(compiler: Compiler, tmp_path: Path) -> None:
    program = tmp_path / "encoder"
    link = ["-cudart", "static", f"-L{compiler.tools.target_lib}", "-arch=sm_90"]
    done = proc.run([*compiler.command, *link, DATA / "e2m1_encoder.cu", "-o", program], check=False)
    assert done.status == 0, done.output
    words = _inputs()
    codes = np.frombuffer(proc.run([program], stdin=words.tobytes()).stdout, np.uint8).reshape(-1, 2)
    assert len(codes) == len(words)
    assert codes[: len(TABLE), 0].tolist() == [code for _, code in TABLE]
    wrong = np.flatnonzero(codes[:, 0] != codes[:, 1])
    assert wrong.size == 0, [f"{words[i]:08x}: {codes[i].tolist()}" for i in wrong[:8]]
