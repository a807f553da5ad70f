"""`index.jsonl`: everything the index knows, one JSON object per line, in a fixed order.

The file is the index's own memory and is published with it. A rebuild reads it instead of the wheels: each
fact was read from a wheel once, together with the wheel's SHA-256, and a file of that name can never change
afterwards. A cache keyed by size and modification time would break with every checkout and every copy, and
would have to be thrown away; this one is the truth, and `verify` compares it with the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from packaging.version import InvalidVersion, Version

from vllm_spark.distro.index.facts import FileFact, ProjectFact, ReleaseFact, SiteFact
from vllm_spark.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["STATE_FILE", "State", "checked", "dump", "load", "parse"]

STATE_FILE = "index.jsonl"

Record = SiteFact | ProjectFact | FileFact | ReleaseFact


class State(msgspec.Struct, frozen=True):
    """All facts, in the order in which `dump` writes them."""

    site: SiteFact = SiteFact(format=1)
    projects: tuple[ProjectFact, ...] = ()
    files: tuple[FileFact, ...] = ()
    releases: tuple[ReleaseFact, ...] = ()

    def of(self, project: str) -> tuple[FileFact, ...]:
        """The files of one project, oldest version first."""
        return tuple(fact for fact in self.files if fact.project == project)

    def ordered(self) -> State:
        """The same facts in the one order that the pages and `dump` use."""
        return State(
            self.site,
            tuple(sorted(self.projects, key=lambda fact: fact.name)),
            tuple(sorted(self.files, key=lambda fact: fact.order)),
            tuple(sorted(self.releases, key=lambda fact: (fact.project, Version(fact.version)))),
        )


def dump(state: State) -> bytes:
    """The lines of `index.jsonl`."""
    records: list[Record] = [state.site, *state.projects, *state.files, *state.releases]
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def checked(state: State) -> State:
    """The same state, in order, after it was written and read once.

    Raises:
        ConfigError: a value that a caller gave cannot stand in an index.
    """
    where, hint = "the new facts", "correct the value that was given"
    try:
        return parse(dump(state.ordered()), where=where)
    except InvalidVersion as err:
        raise ConfigError(str(err), where=where, hint=hint) from err
    except ArtefactError as err:
        raise ConfigError(err.what, where=err.where, hint=hint) from err


def parse(data: bytes, *, where: str) -> State:
    """Read what `dump` wrote.

    Raises:
        ArtefactError: a line is malformed, unknown, out of order or there twice.
    """
    decoder = msgspec.json.Decoder(Record)
    groups: dict[type, list[Record]] = {SiteFact: [], ProjectFact: [], FileFact: [], ReleaseFact: []}
    for number, line in enumerate(data.splitlines(), 1):
        try:
            record = decoder.decode(line)
        except msgspec.DecodeError as err:
            raise ArtefactError(f"not a line of an index: {err}", where=f"{where}:{number}", hint=_HINT) from err
        groups[type(record)].append(record)
    if len(groups[SiteFact]) != 1:
        raise ArtefactError("one line of kind site expected", where=where, hint=_HINT)
    state = State(
        groups[SiteFact][0],  # type: ignore[arg-type]  # each group holds its own type
        tuple(groups[ProjectFact]),  # type: ignore[arg-type]
        tuple(groups[FileFact]),  # type: ignore[arg-type]
        tuple(groups[ReleaseFact]),  # type: ignore[arg-type]
    )
    names = [fact.filename for fact in state.files]
    try:
        tidy = dump(state.ordered()) == data and len(set(names)) == len(names)
    except InvalidVersion as err:
        raise ArtefactError(str(err), where=where, hint=_HINT) from err
    if not tidy:
        raise ArtefactError("lines are out of order or doubled, so it was edited by hand", where=where, hint=_HINT)
    return state


_HINT = "restore the folder from the published copy"


def load(out: Path) -> State:
    """The state of the index in `out`; empty where there is none yet."""
    path = out / STATE_FILE
    return parse(path.read_bytes(), where=str(path)) if path.is_file() else State()
