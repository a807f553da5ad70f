"""Which targets have the convert instruction, and that our code knows it as NVIDIA's does (cases T03 and T04)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from vllm_spark import paths, proc
from vllm_spark.distro import profile
from vllm_spark.distro.ext import toolchain

if TYPE_CHECKING:
    from pathlib import Path

ONE_LINE = """
__global__ void k(unsigned short* o, float a, float b) {
  asm("{ .reg .b8 p; cvt.rn.satfinite.e2m1x2.f32 p, %1, %2; mov.b16 %0, {p, 0}; }" : "=h"(*o) : "f"(a), "f"(b));
}
"""
BOTH_HEADERS = """
#include <cuda_fp4.h>
#include "e2m1.cuh"
__global__ void theirs(unsigned char* o, float2 x) { *o = __nv_cvt_float2_to_fp4x2(x, __NV_E2M1, cudaRoundNearest); }
__global__ void ours(unsigned* o, const float* x) {
  float v[8];
  for (int i = 0; i < 8; ++i) v[i] = x[i];
  *o = vllm_spark::e2m1::encode8(v);
  o[1] = vllm_spark::e2m1::hardware() ? 424242u : 171717u;
}
"""


@pytest.fixture(scope="module")
def tools() -> toolchain.Toolchain:
    return toolchain.ensure(profile.load("gb10-cu130"))


@pytest.mark.parametrize(
    ("target", "passes"),
    [("100", False), ("120", False), ("121", False), ("90a", False)]
    + [(target, True) for target in ("100a", "120a", "120f", "121a", "121f")],
)
def test_t03_the_instruction(tools: toolchain.Toolchain, tmp_path: Path, target: str, passes: bool) -> None:
    (tmp_path / "k.cu").write_text(ONE_LINE)
    done = proc.run([tools.nvcc, "-cubin", f"-arch=sm_{target}", "k.cu"], cwd=tmp_path, check=False)
    assert (done.status == 0) is passes, done.output
    assert passes or "e2m1x2' not supported on .target" in done.output


@pytest.mark.parametrize(
    ("target", "count"),
    [("90", 0), ("90a", 0), ("100", 0), ("120", 0), ("121", 0)]
    + [(target, 1) for target in ("100a", "100f", "103a", "110a", "120a", "120f", "121a", "121f")],
)
def test_t04_the_header(tools: toolchain.Toolchain, tmp_path: Path, target: str, count: int) -> None:
    (tmp_path / "k.cu").write_text(BOTH_HEADERS)
    include = paths.repo_root() / "csrc" / "include"
    proc.run([tools.nvcc, "-ptx", f"-arch=compute_{target}", "-std=c++20", "-I", include, "k.cu"], cwd=tmp_path)
    theirs, ours = re.split(r"(?=\.visible \.entry)", (tmp_path / "k.ptx").read_text())[1:]
    if "theirs" not in theirs.splitlines()[0]:
        theirs, ours = ours, theirs
    assert theirs.count("cvt.rn.satfinite.e2m1x2") == count
    assert ours.count("cvt.rn.satfinite.e2m1x2") == 4 * count
    assert ("424242" in ours, "171717" in ours) == (count == 1, count == 0)
