"""Findings on captured machines: a healthy Spark, and each thing that goes wrong on one."""

from __future__ import annotations

import dataclasses

import pytest

from vllm_spark.host.doctor import diagnose
from vllm_spark.host.facts import Facts, gather

GIB = 1 << 30
SPARK = Facts(
    machine="aarch64",
    glibc="2.39",
    versions={
        "vllm": "0.33.0+spark.1",
        "vllm-spark": "0.33.0.1",
        "torch": "2.14.0",
        "nvidia-cuda-nvcc": "13.0.88",
        "nvidia-cuda-crt": "13.0.88",
        "nvidia-nvvm": "13.0.88",
        "nvidia-cuda-runtime": "13.0.96",
    },
    required_vllm="vllm==0.33.0+spark.1",
    extension="E2M1 conversion: hardware",
    extension_loads=True,
    gpu="NVIDIA GB10",
    capability="12.1",
    driver="580.142",
    memory_total=int(121.69 * GIB),
    memory_available=int(115.85 * GIB),
    swap_total=0,
    cache_free=900 * GIB,
)


def test_healthy_spark() -> None:
    assert {finding.status for finding in diagnose(SPARK)} == {"ok"}


@pytest.mark.parametrize(
    ("change", "check", "status"),
    [
        ({"machine": "x86_64"}, "platform", "warn"),
        ({"glibc": "2.31"}, "platform", "fail"),
        ({"glibc": ""}, "platform", "fail"),
        ({"versions": {**SPARK.versions, "vllm": "0.33.0"}}, "versions", "fail"),
        ({"versions": {k: v for k, v in SPARK.versions.items() if k != "vllm"}}, "versions", "fail"),
        ({"required_vllm": ""}, "versions", "fail"),
        ({"versions": {**SPARK.versions, "nvidia-cuda-nvcc": "13.5.37"}}, "cuda packages", "fail"),
        ({"extension_loads": False, "extension": "undefined symbol"}, "extension", "fail"),
        ({"gpu": "", "capability": ""}, "gpu", "fail"),
        ({"gpu": "NVIDIA RTX PRO 6000", "capability": "12.0"}, "gpu", "warn"),
        ({"driver": ""}, "driver", "fail"),
        ({"driver": "570.86"}, "driver", "fail"),
        ({"driver": "590.44"}, "driver", "warn"),
        ({"memory_available": 85 * GIB}, "memory", "warn"),
        ({"swap_total": 16 * GIB}, "swap", "warn"),
        ({"cache_free": 5 * GIB}, "disk", "warn"),
    ],
)
def test_each_fault_is_found_and_nothing_else(change: dict[str, object], check: str, status: str) -> None:
    bad = [f for f in diagnose(dataclasses.replace(SPARK, **change)) if f.status != "ok"]  # type: ignore[arg-type]
    assert [(f.check, f.status) for f in bad] == [(check, status)]
    assert all(f.hint for f in bad)


def test_this_machine_can_be_gathered() -> None:
    facts = gather()
    assert facts.memory_total >= facts.memory_available > 0
    assert "torch" in facts.versions
