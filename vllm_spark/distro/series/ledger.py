"""`patches/ledger.toml`: the patches that were dropped, and how large the series may be."""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Annotated

import msgspec

from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Budget", "Dropped", "Ledger", "load"]

Text = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Dropped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A patch that the series no longer has.

    Attributes:
        patch: its name.
        date: when it was dropped.
        base: the upstream release since which it is superfluous.
        why: the reason, for people.
        upstream: address of the change that replaces it; empty when there is none.
    """

    patch: Text
    date: dt.date
    base: Text
    why: Text
    upstream: str = ""


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that the series may hold since `date`: patches, and lines added plus removed."""

    date: dt.date
    patches: Count
    lines: Count
    why: Text


class Ledger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; the last budget counts, the earlier ones are its history."""

    budget: Annotated[tuple[Budget, ...], msgspec.Meta(min_length=1)]
    dropped: tuple[Dropped, ...] = ()


def load(path: Path) -> Ledger:
    """Read the ledger.

    Raises:
        ConfigError: it is missing or malformed; the message names the key.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Ledger)
    except FileNotFoundError:
        raise ConfigError("missing", where=str(path), hint="restore it from git") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise ConfigError(str(err), where=str(path), hint="see docs/series.md") from err
