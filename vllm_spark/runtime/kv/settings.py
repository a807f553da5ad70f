"""What the user may set, and the refusals of what makes no sense.

`VLLM_SPARK_KV_TARGET`: `max` (all but the reserve) or `need` (what max_num_seqs sequences of max_model_len take).
`VLLM_SPARK_HOST_RESERVE`: memory that stays with the host: a size (`6GiB`, `512MiB`; a bare number is GiB) or a
share (`5%`) of the memory. `MAX_JOBS`: compiler jobs at run time; ours only where the user has set none.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.kv.memory import GIB, MIB, gib

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RESERVE", "TARGET", "Settings", "Target", "default_reserve", "jit_jobs", "parse"]

Target = Literal["max", "need"]
TARGET = "VLLM_SPARK_KV_TARGET"
RESERVE = "VLLM_SPARK_HOST_RESERVE"

_UNITS = {"": GIB, "b": 1, "kib": 1 << 10, "mib": MIB, "gib": GIB, "k": 1 << 10, "m": MIB, "g": GIB}
_SIZE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?P<unit>%|[a-z]*)", re.IGNORECASE)
# A discrete GPU needs no memory for an operating system: this covers what libraries still allocate on first use.
_RESERVE_DISCRETE = 256 * MIB


@dataclass(frozen=True)
class Settings:
    """The user's choice, checked against the machine."""

    target: Target
    reserve: int


def default_reserve(total: int, *, unified: bool) -> int:
    """Bytes for the host: the larger of 4 GiB and 5 % on unified memory, a quarter GiB on a discrete GPU."""
    return max(4 * GIB, math.ceil(total * 0.05)) if unified else _RESERVE_DISCRETE


def _parse_reserve(text: str, total: int) -> int:
    found = _SIZE.fullmatch(text.strip())
    unit = found["unit"].lower() if found else ""
    if found is None or (unit != "%" and unit not in _UNITS):
        hint = f"set {RESERVE} to a size like 6GiB or 512MiB, or a share like 5%"
        raise ConfigError(f"no size: {text!r}", where=RESERVE, hint=hint)
    number = float(found["number"])
    reserve = math.ceil(total * number / 100 if unit == "%" else number * _UNITS[unit])
    if reserve >= total:
        hint = f"set {RESERVE} to less, for example 5%"
        raise ConfigError(f"{gib(reserve)} to reserve, {gib(total)} of memory", where=RESERVE, hint=hint)
    return reserve


def parse(env: Mapping[str, str], total: int, *, unified: bool) -> Settings:
    """The settings in `env` for `total` bytes of memory.

    Raises:
        ConfigError: a value is unknown, not a size, or larger than the memory.
    """
    target = env.get(TARGET, "max")
    if target not in get_args(Target):
        raise ConfigError(f"unknown target {target!r}", where=TARGET, hint=f"set {TARGET} to max or need")
    text = env.get(RESERVE)
    reserve = default_reserve(total, unified=unified) if text is None else _parse_reserve(text, total)
    if reserve >= total:
        hint = f"set {RESERVE} to what you can spare"
        raise ConfigError(f"the default reserve of {gib(reserve)} is all of {gib(total)}", where=RESERVE, hint=hint)
    return Settings(cast("Target", target), reserve)


def jit_jobs(available: int, cpus: int) -> int:
    """Compiler jobs that fit: one nvcc takes up to 8 GiB, and 16 GiB stay free for everything else."""
    return max(1, min(cpus, (available - 16 * GIB) // (8 * GIB)))
