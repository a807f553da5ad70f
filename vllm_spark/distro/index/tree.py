"""Facts in, a folder out. The folder changes whole or not at all, and a wheel in it never changes again.

    index.html           for people
    index.jsonl          the facts (`state`)
    SHA256SUMS           every file of the index; `sha256sum --check` reads it
    simple/              what pip and uv read: index.html and index.json, per project too
    files/               wheels, and beside each its METADATA as `<wheel>.metadata`

A change is first laid out in `.staging`; renaming that to `.commit` decides that it happens, and its files are
then moved into place, `SHA256SUMS` last. A run that dies before the rename left nothing; one that dies after it
is finished by the next. Files that are not the index's own (a `CNAME`, a `.git`) are left alone.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from vllm_spark import paths
from vllm_spark.distro.index import landing, simple_html, simple_json
from vllm_spark.distro.index.facts import FileFact, ProjectFact, ReleaseFact, read_wheel, timestamp
from vllm_spark.distro.index.folder import SUMS_FILE, require_folder, require_untouched
from vllm_spark.distro.index.state import STATE_FILE, State, checked, dump, load
from vllm_spark.errors import ArtefactError, IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

__all__ = ["Built", "build", "change", "render"]


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
    projects: Iterable[ProjectFact] = (),
    releases: Iterable[ReleaseFact] = (),
) -> Built:
    """Add wheels to the index in `out`, making it if there is none; without wheels, write its pages anew.

    Args:
        base_url: the public address of `out`, for the lines that people copy; kept for later runs.
        files_url: where these wheels are published, if not in `files/`; they are laid there all the same, to be
            uploaded together with their `.metadata`.
        uploaded: the release's time; clients that look at dates ignore files without one.
        projects: replaces what is known of these projects.
        releases: descriptions for the landing page.

    Raises:
        IntegrityError: a wheel or a release of this name is there with other content.
        ArtefactError: a wheel cannot be read, or the folder was edited by hand.
        ConfigError: the folder is not empty and not an index.
        ResourceError: no space, no permission, or another run is at work.
    """
    when = timestamp(uploaded) if uploaded else None
    read = [read_wheel(wheel, uploaded=when, files_url=files_url) for wheel in wheels]
    with change(out) as (old, publish):
        added = _new_files(old, [fact for fact, _metadata in read])
        new = State(
            msgspec.structs.replace(old.site, base_url=base_url.rstrip("/")) if base_url else old.site,
            _merge_projects(old, projects, added),
            (*old.files, *added),
            (*old.releases, *_new_releases(old, releases)),
        )
        incoming = {fact.filename: (wheel, data) for wheel, (fact, data) in zip(wheels, read, strict=True)}
        written = publish(checked(new), {fact.filename: incoming[fact.filename] for fact in added})
        return Built(out, added, len(old.files), written)


def render(state: State) -> dict[str, bytes]:
    """Every generated page by its path below the folder, the state among them: a pure function of the facts."""
    pages = {
        "simple/index.html": simple_html.root_page(state.projects),
        "simple/index.json": simple_json.root_page(state.projects),
    }
    for project in state.projects:
        files = state.of(project.name)
        pages[f"simple/{project.name}/index.html"] = simple_html.project_page(project, files)
        pages[f"simple/{project.name}/index.json"] = simple_json.project_page(project, files)
    return pages | {"index.html": landing.page(state), STATE_FILE: dump(state)}


def sums(state: State, pages: Mapping[str, bytes]) -> bytes:
    """The lines of `SHA256SUMS`, as coreutils writes them."""
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in pages.items()}
    for fact in state.files:
        digests[f"files/{fact.filename}"] = fact.sha256
        digests[f"files/{fact.filename}.metadata"] = fact.metadata_sha256
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items())).encode()


Incoming = dict[str, tuple["Path", bytes]]


@dataclass(frozen=True)
class _Publish:
    """Lays a new state out beside the old one and switches over."""

    out: Path

    def __call__(self, state: State, incoming: Incoming) -> tuple[str, ...]:
        pages = render(state)
        pages[SUMS_FILE] = sums(state, pages)
        changed = {path: data for path, data in pages.items() if not _holds(self.out / path, data)}
        if not changed and not incoming:
            return ()
        staging = self.out / ".staging"
        try:
            for name, (wheel, metadata) in incoming.items():
                expected = next(fact.sha256 for fact in state.files if fact.filename == name)
                _copy(wheel, staging / "files" / name, expected)
                paths.atomic_write(staging / "files" / f"{name}.metadata", metadata)
            for path, data in changed.items():
                paths.atomic_write(staging / path, data)
            written = tuple(_below(staging))
            staging.rename(self.out / ".commit")
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        _finish(self.out)
        return written


@contextmanager
def change(out: Path) -> Iterator[tuple[State, _Publish]]:
    """Hold the index for one change: its state now, and the function that publishes the next one.

    Raises:
        ArtefactError: the folder was edited by hand.
        ConfigError: the path is a file, or the folder is not empty and not an index.
        ResourceError: another run is at work, or the folder cannot be written.
    """
    require_folder(out)
    with paths.resource_errors(out), paths.lock(out / ".index.lock"):
        shutil.rmtree(out / ".staging", ignore_errors=True)
        _finish(out)
        require_untouched(out)
        state = load(out)
        _require_wheels(out, state)
        yield state, _Publish(out)


def _require_wheels(out: Path, state: State) -> None:
    for fact in state.files:
        path = out / "files" / fact.filename
        size = path.stat().st_size if path.is_file() else None
        if size != fact.size and not (size is None and fact.url):
            what = "missing" if size is None else f"{size} bytes, the index recorded {fact.size}"
            raise ArtefactError(what, where=str(path), hint="restore the published copy")


def _finish(out: Path) -> None:
    """Move the files of a decided change into place."""
    commit = out / ".commit"
    if not commit.is_dir():
        return
    for path in _below(commit):
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (commit / path).replace(out / path)
    shutil.rmtree(commit)


def _below(folder: Path) -> list[str]:
    """Relative paths of the files, in the order that is safe to appear in: wheels, pages, root, sums."""
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(found, key=lambda path: (path == SUMS_FILE, path == STATE_FILE, "/" not in path, path))


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _copy(source: Path, target: Path, sha256: str) -> None:
    paths.require_space(target, source.stat().st_size)
    digest = hashlib.sha256()
    with source.open("rb") as src, paths.atomic_file(target) as dst:
        while chunk := src.read(1 << 20):
            digest.update(chunk)
            dst.write(chunk)
        if digest.hexdigest() != sha256:
            raise IntegrityError(
                "changed while it was copied", where=str(source), hint="let its writer end, then retry"
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
