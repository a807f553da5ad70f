"""Facts in, a folder out. The folder changes whole or not at all, and a wheel in it never changes again.

    index.html           for people
    index.jsonl          the facts (`state`)
    SHA256SUMS           every file of the index; `sha256sum --check` reads it
    simple/              what pip and uv read: index.html and index.json, per project too
    files/               wheels, and beside each its METADATA as `<wheel>.metadata`

Files that are not the index's own (a `CNAME`, a `.git`) are left alone. `publish` says how a change happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from vllm_spark.distro.index.facts import FileFact, ProjectFact, ReleaseFact, timestamp
from vllm_spark.distro.index.publish import change
from vllm_spark.distro.index.reading import read_wheel
from vllm_spark.distro.index.state import State, checked
from vllm_spark.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

__all__ = ["Built", "build"]


@dataclass(frozen=True)
class Built:
    """What `build` did.

    Attributes:
        out: the folder.
        added: the wheels that are new in it.
        kept: how many files it had before and still has.
        written: the paths below `out` that were written; empty when there was nothing to do.
    """

    out: Path
    added: tuple[FileFact, ...]
    kept: int
    written: tuple[str, ...]


def build(
    out: Path,
    wheels: Sequence[Path] = (),
    *,
    base_url: str | None = None,
    files_url: str | None = None,
    uploaded: datetime | None = None,
    provenance: Mapping[str, str] = MappingProxyType({}),
    projects: Iterable[ProjectFact] = (),
    releases: Iterable[ReleaseFact] = (),
) -> Built:
    """Add wheels to the index in `out`, making it if there is none; without wheels, write its pages anew.

    Args:
        base_url: the public address of `out`, for the lines that people copy; kept for later runs.
        files_url: where these wheels will be published, if not in `files/`, from where they are uploaded.
        uploaded: the release's time; clients that look at dates ignore files without one.
        provenance: address of the attestations by file name (PEP 740), for wheels that are new.
        projects: replaces what is known of these projects.
        releases: descriptions for the landing page.

    Raises:
        IntegrityError: a wheel or a release of this name is there with other content.
        ArtefactError: a wheel cannot be read, or the folder was edited by hand.
        ConfigError: the folder is not empty and not an index.
        ResourceError: no space, no permission, or another run is at work.
    """
    read = {wheel: read_wheel(wheel) for wheel in wheels}
    told = [_told(fact, files_url, uploaded, provenance) for fact, _metadata in read.values()]
    with change(out) as (old, publish):
        added = _new_files(old, told)
        site = msgspec.structs.replace(old.site, base_url=base_url.rstrip("/")) if base_url else old.site
        described = (*old.releases, *_new_releases(old, releases))
        new = State(site, _merge_projects(old, projects, added), (*old.files, *added), described)
        names = {fact.filename for fact in added}
        incoming = {wheel.name: (wheel, metadata) for wheel, (_, metadata) in read.items() if wheel.name in names}
        return Built(out, added, len(old.files), publish(checked(new), incoming))


def _told(fact: FileFact, files_url: str | None, uploaded: datetime | None, provenance: Mapping[str, str]) -> FileFact:
    """The facts that no wheel tells of itself."""
    return msgspec.structs.replace(
        fact,
        url=f"{files_url.rstrip('/')}/{fact.quoted}" if files_url else None,
        uploaded=timestamp(uploaded) if uploaded else None,
        provenance=provenance.get(fact.filename),
    )


def _new_files(old: State, facts: Sequence[FileFact]) -> tuple[FileFact, ...]:
    known = {fact.filename: fact for fact in old.files}
    added = []
    for fact in facts:
        there = known.setdefault(fact.filename, fact)
        if there is fact:
            added.append(fact)
        elif there.sha256 != fact.sha256:
            what = f"the index has this file as sha256 {there.sha256}, the new one is {fact.sha256}"
            hint = "a published file never changes: raise the version and build again"
            raise IntegrityError(what, where=fact.filename, hint=hint)
    return tuple(added)


def _new_releases(old: State, releases: Iterable[ReleaseFact]) -> tuple[ReleaseFact, ...]:
    known = {(fact.project, fact.version): fact for fact in old.releases}
    added = []
    for fact in releases:
        there = known.setdefault((fact.project, fact.version), fact)
        if there is fact:
            added.append(fact)
        elif there != fact:
            hint = "a published release never changes: raise the version and build again"
            raise IntegrityError("described otherwise already", where=f"{fact.project} {fact.version}", hint=hint)
    return tuple(added)


def _merge_projects(old: State, projects: Iterable[ProjectFact], added: Sequence[FileFact]) -> tuple[ProjectFact, ...]:
    merged = {fact.project: ProjectFact(fact.project) for fact in added}
    merged |= {project.name: project for project in old.projects}
    merged |= {project.name: project for project in projects}
    return tuple(merged.values())
