"""What `--model-loader-extra-config` may say to the stream loader."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one load.

    Attributes:
        staging_mb: size of the staging ring in MiB.
        threads: read requests in flight.
        direct: try O_DIRECT before reads that go through the page cache.
        cache: keep finished weights, and use those that were kept.
        cache_gb: GiB that all kept weights may take.
    """

    staging_mb: int = 256
    threads: int = 8
    direct: bool = True
    cache: bool = True
    cache_gb: int = 200

    @classmethod
    def parse(cls, given: Mapping[str, object]) -> Options:
        """Options from the command line's table.

        Raises:
            ConfigError: an unknown key, or a value of the wrong type or sign.
        """
        known = {field.name: type(field.default) for field in fields(cls)}
        for key, value in given.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"keys are {', '.join(known)}"
                raise ConfigError(f"unknown key {key!r}", where="--model-loader-extra-config", hint=hint)
            if type(value) is not known[key] or (type(value) is int and value < 1):
                hint = "give true or false" if known[key] is bool else "give a whole number above 0"
                raise ConfigError(f"{key} is {value!r}", where="--model-loader-extra-config", hint=hint)
        return cls(**given)  # type: ignore[arg-type]
