"""Which files make up a release, and the lines that install exactly those.

Every line is safe against a package of the same name on another index: ours are taken from ours alone, without
their dependencies and with their hashes; a second command then adds the dependencies from the default index,
for which our two names are satisfied already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_spark.distro.index.facts import FileFact
    from vllm_spark.distro.index.state import State

__all__ = ["MAIN", "Lines", "current", "install", "members", "versions"]

# The project whose versions are the releases; the others come along as its exact requirements.
MAIN = "vllm-spark"


@dataclass(frozen=True)
class Lines:
    """Shell text that installs one release, by tool."""

    pip: str
    uv: str


def versions(state: State, project: str = MAIN) -> dict[str, str | None]:
    """The versions of a project, oldest first, each with the reason why it is yanked (None: it is not)."""
    found: dict[str, str | None] = {}
    for fact in state.of(project):
        # One good file is enough to install a version by.
        found[fact.version] = fact.yanked if found.get(fact.version, "") is not None else None
    return found


def current(state: State, project: str = MAIN, *, below: str | None = None) -> str | None:
    """The newest version that is not yanked (and older than `below`); None where there is none."""
    good = [
        version
        for version, yanked in versions(state, project).items()
        if yanked is None and (below is None or Version(version) < Version(below))
    ]
    return good[-1] if good else None


def members(state: State, version: str, project: str = MAIN) -> tuple[FileFact, ...]:
    """The files of a release: those of `version`, and those that it requires exactly and this index has."""
    own = [fact for fact in state.of(project) if fact.version == version]
    pinned = {pin for fact in own for pin in fact.exact}
    return tuple(fact for fact in state.files if fact in own or (fact.project, fact.version) in pinned)


def install(base_url: str, files: Sequence[FileFact]) -> Lines:
    """The lines that install `files`, then what they depend on."""
    hashes: dict[str, list[str]] = {}
    for fact in files:
        hashes.setdefault(f"{fact.project}=={fact.version}", []).append(f"--hash=sha256:{fact.sha256}")
    pins = " ".join(hashes)
    locked = "\n".join(" ".join([pin, *digests]) for pin, digests in hashes.items())
    index = f"{base_url}/simple/"
    heredoc = f"<<'END'\n{locked}\nEND"
    return Lines(
        pip=f"python -m pip install --index-url {index} --no-deps --require-hashes -r /dev/stdin {heredoc}\n"
        f"python -m pip install {pins}",
        uv=f"uv pip install --default-index {index} --no-deps --require-hashes -r - {heredoc}\n"
        f"uv pip install --index {index} {pins}",
    )
