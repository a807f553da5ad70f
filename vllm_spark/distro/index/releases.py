"""Taking a release back, and going back to the one before it. Neither removes a byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from packaging.version import InvalidVersion, Version

from vllm_spark.distro.index import folder, lines
from vllm_spark.distro.index.publish import change
from vllm_spark.distro.index.state import State, checked, load
from vllm_spark.errors import ConfigError, NothingToDo

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.index.facts import FileFact

__all__ = ["Rollback", "rollback", "yank"]


@dataclass(frozen=True)
class Rollback:
    """The way back: to which version, with which files, by which lines."""

    version: str
    files: tuple[FileFact, ...]
    lines: lines.Lines


def yank(out: Path, version: str, reason: str, *, project: str = lines.MAIN) -> tuple[FileFact, ...]:
    """Mark a release as one that nobody should choose any more (PEP 592); it stays for those who pin it.

    What the release requires exactly is marked too, unless a good release needs it as well.

    Returns:
        The files that are newly marked.

    Raises:
        ConfigError: no such version, or no reason.
        NothingToDo: it is yanked already; a second reason does not replace the first.
        ArtefactError: see `publish.change`.
    """
    if not reason.strip():
        raise ConfigError("a yank needs a reason", hint='add --reason "…"; owners read it')
    folder.read_sums(out)
    with change(out) as (state, publish):
        wanted = _require(state, version, project)
        release = lines.members(state, wanted, project)
        needed = {
            fact
            for other, yanked in lines.versions(state, project).items()
            if other != wanted and yanked is None
            for fact in lines.members(state, other, project)
        }
        marked = tuple(fact for fact in release if fact.yanked is None and fact not in needed)
        if not marked:
            raise NothingToDo("yanked already", where=f"{project} {wanted}")
        files = tuple(
            msgspec.structs.replace(fact, yanked=reason.strip()) if fact in marked else fact for fact in state.files
        )
        publish(checked(State(state.site, state.projects, files, state.releases)), {})
        return marked


def rollback(out: Path, version: str | None = None, *, project: str = lines.MAIN) -> Rollback:
    """How to go back to `version`, or else to the last good release before the newest one.

    Raises:
        ConfigError: no such version, it is yanked, or there is none to go back to.
        ArtefactError: the folder is no index, or was edited by hand.
    """
    folder.read_sums(out)
    folder.require_untouched(out)
    state = load(out)
    target = _require(state, version, project) if version else _previous(state, out, project)
    yanked = lines.versions(state, project)[target]
    if yanked is not None:
        raise ConfigError(f"yanked: {yanked}", where=f"{project} {target}", hint="choose another version")
    files = lines.members(state, target, project)
    base = state.site.base_url or out.resolve().as_uri()
    return Rollback(target, files, lines.install(base, files))


def _previous(state: State, out: Path, project: str) -> str:
    known = list(lines.versions(state, project))
    found = lines.current(state, project, below=known[-1]) if known else None
    if found is None:
        what = f"no good release of {project} before the newest one"
        raise ConfigError(what, where=str(out), hint=f"it has: {', '.join(known) or 'none at all'}")
    return found


def _require(state: State, version: str, project: str) -> str:
    known = lines.versions(state, project)
    try:
        wanted = Version(version)
    except InvalidVersion as err:
        raise ConfigError(str(err), hint="give a version such as 0.33.0.1") from err
    for candidate in known:
        if Version(candidate) == wanted:
            return candidate
    raise ConfigError(f"no release {version} of {project}", hint=f"it has: {', '.join(known) or 'none at all'}")
