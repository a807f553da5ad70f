"""The state of a rebase under way: one JSON file, written whole after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from vllm_spark import paths
from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Decision", "Options", "State", "load", "save"]

_FORM = 1


class Decision(msgspec.Struct, frozen=True):
    """What is to become of a patch that does not settle itself.

    Attributes:
        action: `resolved`: take `commit`'s change in its place; `drop`: a person lets it go; `obsolete`: its guards
            are green without it.
        why: the reason for the ledger; empty for `resolved`.
        commit: in the work tree's repository, on the tip that the person worked on.
    """

    action: Literal["resolved", "drop", "obsolete"]
    why: str = ""
    commit: str = ""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the person asked for; `continue` keeps to it.

    Attributes:
        source: a folder, an sdist or a clone that holds the new release; empty takes the package index.
        history: a clone of upstream; empty when there is none.
        skip: names of checks that are not to be done.
    """

    source: str = ""
    history: str = ""
    allow_older: bool = False
    skip: tuple[str, ...] = ()


class State(msgspec.Struct, kw_only=True):
    """A rebase under way.

    Attributes:
        base: the release that the series is made for.
        onto: the release that it goes to.
        head: the commit of the checkout that it started from.
        series: the digest of the patch files then.
        branch: what the result will be called.
        stopped: the patch that waits for a person; empty when none does.
        tried: patches whose guards were run without them, with what they said.
        done: the branch is made.
    """

    form: int = _FORM
    base: str
    onto: str
    head: str
    series: str
    branch: str
    options: Options = Options()
    decisions: dict[str, Decision] = {}
    stopped: str = ""
    tried: dict[str, str] = {}
    done: bool = False


def save(path: Path, state: State) -> None:
    """Write the state."""
    paths.atomic_write(path, msgspec.json.format(msgspec.json.encode(state), indent=1) + b"\n")


def load(path: Path) -> State:
    """Read the state.

    Raises:
        ConfigError: there is no rebase under way, or the file is not what `save` wrote.
    """
    try:
        state = msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        hint = "vllm-spark rebase run --onto VERSION"
        raise ConfigError("no rebase is under way", where=str(path), hint=hint) from None
    except msgspec.DecodeError as err:
        raise ConfigError(f"damaged: {err}", where=str(path), hint="vllm-spark rebase abort") from err
    if state.form != _FORM:
        raise ConfigError(f"written by another version (form {state.form})", where=str(path), hint="finish it there")
    return state
