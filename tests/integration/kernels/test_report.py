"""The report on compiled kernels: read from real images, and strict about what a GB10 can launch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from vllm_spark import paths, proc
from vllm_spark.distro import profile
from vllm_spark.distro.ext import report, toolchain
from vllm_spark.errors import RuleError

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
__global__ void __launch_bounds__(192) scale(float* x) {
  __shared__ float part[256];
  part[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = 2.0f * part[255 - threadIdx.x];
}
"""


def kernel(**changes: object) -> report.Kernel:
    mix = {"all": 100, "memory": 1, "shared": 16, "matrix": 4, "spill": 0}
    fields: dict[str, object] = {"name": "k", "registers": 128, "stack": 0, "shared": 65536, "threads": 256}
    return report.Kernel(**{**fields, "mix": mix, "loop": mix, **changes})  # type: ignore[arg-type]


def test_a_compiled_kernel(tmp_path: Path) -> None:
    tools = toolchain.ensure(profile.load("gb10-cu130"))
    source, made = tmp_path / "k.cu", tmp_path / "k.o"
    source.write_text(SOURCE)
    arch = "-gencode=arch=compute_121a,code=sm_121a"
    proc.run([tools.nvcc, "-ccbin", tools.host_compiler(), arch, "-c", source, "-o", made], env=tools.env)
    (found,) = report.survey(made, tools)
    assert "scale" in found.name
    assert found.threads == 192
    assert found.shared == 1024
    assert found.mix["memory"] == 2
    assert found.mix["shared"] == 2
    assert found.mix["spill"] == 0
    assert found.blocks(report.GB10) == report.GB10.threads // 192
    report.check([found], report.GB10)


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({}, 1),
        ({"shared": 0}, 2),
        ({"shared": 99 << 10}, 1),
        ({"shared": (99 << 10) + 1}, 0),
        ({"shared": 0, "registers": 255}, 1),
        ({"shared": 0, "registers": 255, "threads": 512}, 0),
        ({"shared": 0, "registers": 32, "threads": 1024}, 1),
        ({"shared": 0, "registers": 16, "threads": 1025}, 0),
    ],
)
def test_how_many_blocks_fit(changes: dict[str, object], blocks: int) -> None:
    assert kernel(**changes).blocks(report.GB10) == blocks


def test_what_cannot_be_launched_is_refused_by_name() -> None:
    with pytest.raises(RuleError, match=r"not launchable on GB10: bad: 256 threads, 128 registers, 200000 B shared"):
        report.check([kernel(), kernel(name="bad", shared=200000)], report.GB10)


def test_prediction_is_bounded_by_the_memory() -> None:
    name = "_ZN10vllm_spark2w49w4_kernelI6__halfLNS0_6ScalesE1ELi1ELi1ELi4ELi2EEEvNS0_7ProblemENS0_8CodebookE"
    (record,) = report.rows([kernel(name=name)], report.GB10)
    assert record["gigabytes_per_second"] == report.GB10.gigabytes_per_second
    slow = kernel(name=name, loop={"all": 10**6, "memory": 0, "shared": 0, "matrix": 4, "spill": 0})
    assert float(str(report.rows([slow], report.GB10)[0]["gigabytes_per_second"])) < 1


def test_launch_sizes_are_those_of_the_sources() -> None:
    include = paths.repo_root() / "csrc" / "include"
    tile, quantise = (include / name for name in ("w4_tile.cuh", "quantize4.cuh"))
    stride = re.search(r"kTableStride = (\d+)", tile.read_text())
    assert stride
    assert report.shared_at_launch("_ZN9w4_kernelI6__half") == 256 * int(stride[1])
    text = quantise.read_text()
    exact, *fine = (int(number) for number in re.findall(r"k(?:Exact|Fine)Cells = (\d+)", text))
    assert report.shared_at_launch("8quantizeIfNS_8Nf4ScaleIfLi64EEELb1EE") == (exact + fine[0]) * 256
    assert report.shared_at_launch("8quantizeIfNS_10Nvfp4ScaleELb1EE") == (exact + fine[1]) * 256
    assert report.shared_at_launch("8quantizeIfNS_10Mxfp4ScaleELb0EE") == exact * 256
