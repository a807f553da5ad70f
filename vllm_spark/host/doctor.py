"""Judges a machine: can it run vllm-spark, and is anything known to go wrong there? Pure functions over `Facts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from vllm_spark.host.facts import Facts

__all__ = ["Finding", "diagnose"]

Status = Literal["ok", "warn", "fail"]

_GIB = 1 << 30
# Driver branches that owners of a Spark report trouble with. Not reproduced by us: nobody here has a GB10.
_DOUBTFUL_DRIVERS = {"590": "owners report deadlocks with CUDA graphs on this branch; 580 is what they run"}


@dataclass(frozen=True)
class Finding:
    """One check: what was seen, and what to do where it is not well."""

    check: str
    status: Status
    seen: str
    hint: str = ""


def diagnose(facts: Facts) -> list[Finding]:
    """All checks, in the order in which a person would mend what they find."""
    return [
        _platform(facts),
        _versions(facts),
        _nvcc_family(facts),
        _extension(facts),
        _gpu(facts),
        _driver(facts),
        _memory(facts),
        _swap(facts),
        _disk(facts),
    ]


def _platform(facts: Facts) -> Finding:
    seen = f"{facts.machine}, glibc {facts.glibc or 'unknown'}"
    if facts.machine != "aarch64":
        return Finding("platform", "warn", seen, "the release is made for aarch64; this is a development machine")
    if not facts.glibc or _numbers(facts.glibc) < (2, 34):
        return Finding("platform", "fail", seen, "glibc 2.34 or newer is needed (DGX OS 7 has 2.39)")
    return Finding("platform", "ok", seen)


def _versions(facts: Facts) -> Finding:
    seen = ", ".join(f"{name} {version}" for name, version in facts.versions.items() if not name.startswith("nvidia-"))
    wanted = facts.required_vllm.removeprefix("vllm==")
    have = facts.versions.get("vllm", "")
    if not have or not wanted:
        return Finding("versions", "fail", seen or "none", "install vllm-spark from its index")
    if have != wanted:
        return Finding("versions", "fail", seen, f"vllm {wanted} is required: install it from the same index")
    return Finding("versions", "ok", seen)


def _nvcc_family(facts: Facts) -> Finding:
    """Headers of one CUDA folder must be of one minor release, or run-time compilation (FlashInfer) breaks."""
    family = {name: version for name, version in facts.versions.items() if name.startswith("nvidia-")}
    seen = ", ".join(f"{name.removeprefix('nvidia-')} {version}" for name, version in family.items()) or "none"
    minors = {_numbers(version)[:2] for version in family.values()}
    if len(minors) > 1:
        hint = "mixed CUDA minor releases: pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*'"
        return Finding("cuda packages", "fail", seen, hint)
    return Finding("cuda packages", "ok" if family else "warn", seen, "" if family else "run-time compilers need nvcc")


def _extension(facts: Facts) -> Finding:
    if facts.extension_loads:
        return Finding("extension", "ok", facts.extension)
    return Finding("extension", "fail", facts.extension, "reinstall vllm-spark; it must match the installed torch")


def _gpu(facts: Facts) -> Finding:
    if not facts.gpu:
        return Finding("gpu", "fail", "none that torch can use", "check nvidia-smi and the container's --gpus option")
    seen = f"{facts.gpu}, compute capability {facts.capability}"
    if facts.capability != "12.1":
        return Finding("gpu", "warn", seen, "the release carries code for 12.1 only")
    return Finding("gpu", "ok", seen)


def _driver(facts: Facts) -> Finding:
    if not facts.driver:
        return Finding("driver", "fail", "nvidia-smi gives no answer", "install NVIDIA's driver, branch 580 or newer")
    doubt = _DOUBTFUL_DRIVERS.get(facts.driver.split(".", maxsplit=1)[0])
    if doubt:
        return Finding("driver", "warn", facts.driver, doubt)
    if _numbers(facts.driver)[0] < 580:
        return Finding("driver", "fail", facts.driver, "CUDA 13.0 needs branch 580 or newer")
    return Finding("driver", "ok", facts.driver)


def _memory(facts: Facts) -> Finding:
    """On unified memory, what is taken before vLLM starts is missing from weights and KV cache."""
    seen = f"{facts.memory_available / _GIB:.1f} of {facts.memory_total / _GIB:.1f} GiB available"
    if facts.memory_available < 0.8 * facts.memory_total:
        hint = "stop other programs; memory that a crashed process left in the driver returns with a reboot"
        return Finding("memory", "warn", seen, hint)
    return Finding("memory", "ok", seen)


def _swap(facts: Facts) -> Finding:
    seen = f"{facts.swap_total / _GIB:.1f} GiB"
    if facts.swap_total:
        return Finding("swap", "warn", seen, "a full machine thrashes instead of failing: consider `swapoff -a`")
    return Finding("swap", "ok", seen)


def _disk(facts: Facts) -> Finding:
    seen = f"{facts.cache_free / _GIB:.0f} GiB free for caches"
    if facts.cache_free < 20 * _GIB:
        return Finding("disk", "warn", seen, "compile and weight caches need room: 20 GiB and more")
    return Finding("disk", "ok", seen)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
