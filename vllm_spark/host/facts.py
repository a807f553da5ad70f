"""What this machine and its Python environment are, gathered once; judging it is `doctor`'s part."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import proc
from vllm_spark.errors import SparkError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PACKAGES", "Facts", "gather"]

# Distributions whose versions decide whether the stack fits together.
PACKAGES = ("vllm", "vllm-spark", "torch", "nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime")


@dataclass(frozen=True)
class Facts:
    """The inputs of every check.

    Attributes:
        machine: `platform.machine()`.
        glibc: version of the C library, such as "2.39".
        versions: distribution name -> version, for those of `PACKAGES` that are installed.
        required_vllm: the requirement that vllm-spark's metadata states, such as "vllm==0.33.0+spark.1".
        extension: where the compiled extension was found and its E2M1 path, or why it did not load.
        extension_loads: whether it loaded.
        gpu: name of GPU 0; empty where there is none that torch can use.
        capability: its compute capability, such as "12.1"; empty where there is none.
        driver: version of NVIDIA's driver; empty where nvidia-smi is missing.
        memory_total: MemTotal in bytes.
        memory_available: MemAvailable in bytes.
        swap_total: SwapTotal in bytes.
        cache_free: free bytes of the file system that holds the user's cache.
    """

    machine: str
    glibc: str
    versions: Mapping[str, str]
    required_vllm: str
    extension: str
    extension_loads: bool
    gpu: str
    capability: str
    driver: str
    memory_total: int
    memory_available: int
    swap_total: int
    cache_free: int


def gather() -> Facts:
    """Look at this machine. Loads torch and the extension, and starts nvidia-smi; changes nothing."""
    meminfo = _meminfo()
    extension, loads = _extension()
    gpu, capability = _gpu()
    return Facts(
        machine=platform.machine(),
        glibc=platform.libc_ver()[1],
        versions=_versions(),
        required_vllm=_required_vllm(),
        extension=extension,
        extension_loads=loads,
        gpu=gpu,
        capability=capability,
        driver=_driver(),
        memory_total=meminfo["MemTotal"],
        memory_available=meminfo["MemAvailable"],
        swap_total=meminfo["SwapTotal"],
        cache_free=shutil.disk_usage(Path.home()).free,
    )


def _meminfo() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # absent is a fact too: the checks say what it means
    return found


def _required_vllm() -> str:
    try:
        lines = importlib.metadata.requires("vllm-spark") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((line for line in lines if line.startswith("vllm==")), "")


def _extension() -> tuple[str, bool]:
    try:
        from vllm_spark.runtime import kernels

        return f"E2M1 conversion: {kernels.e2m1_path()}", True
    except (ImportError, OSError, SparkError) as err:
        return str(err).splitlines()[0], False


def _gpu() -> tuple[str, str]:
    try:
        import torch
    except ImportError:
        return "", ""
    if not torch.cuda.is_available():
        return "", ""
    major, minor = torch.cuda.get_device_capability(0)
    return torch.cuda.get_device_name(0), f"{major}.{minor}"


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    done = proc.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], check=False, timeout=30)
    return done.text.splitlines()[0].strip() if done.status == 0 and done.text.strip() else ""
