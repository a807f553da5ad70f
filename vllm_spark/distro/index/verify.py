"""Does the folder hold what it says it holds? Each question is a rule with an id; all of them are always asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec
from pypi_simple import ProjectPage

from vllm_spark.distro.index import clients, folder, pages, state
from vllm_spark.distro.index.reading import read_metadata
from vllm_spark.distro.upstream.fetch import sha256_of
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from vllm_spark.distro.index.facts import FileFact
    from vllm_spark.distro.index.state import State

__all__ = ["RULES", "Opened", "Problem", "Report", "Rule", "verify"]


@dataclass(frozen=True)
class Opened:
    """An index under examination; `against` is the state of an older copy of it, if one was given."""

    out: Path
    state: State
    against: State | None = None

    def local(self) -> Iterator[tuple[FileFact, Path]]:
        """The wheels whose bytes are here."""
        for fact in self.state.files:
            path = self.out / "files" / fact.filename
            if path.is_file() and not path.is_symlink():
                yield fact, path


class Rule(ABC):
    """One question. The docstring of each subclass says what it asks and why."""

    id: ClassVar[str]

    @abstractmethod
    def check(self, index: Opened) -> Iterator[str]:
        """One sentence per violation."""


class LinksHashed(Rule):
    """Every link carries the recorded SHA-256, in HTML and in JSON, as an independent reader sees them.

    Without it a client installs whatever the server or the network hands out.
    """

    id = "I001"

    def check(self, index: Opened) -> Iterator[str]:
        """Read both forms of every project page with pypi-simple."""
        for project in index.state.projects:
            expected = {fact.filename: fact.sha256 for fact in index.state.of(project.name)}
            for name in ("index.html", "index.json"):
                path = index.out / "simple" / project.name / name
                if not path.is_file():
                    yield f"simple/{project.name}/{name}: missing"
                    continue
                try:
                    page = _read_page(project.name, path)
                except ValueError as err:
                    yield f"simple/{project.name}/{name}: cannot be read: {err}"
                    continue
                for package in page.packages:
                    digest = package.digests.get("sha256")
                    if digest is None or digest != expected.get(package.filename):
                        yield f"simple/{project.name}/{name}: {package.filename}: sha256 {digest}"
                for file in sorted(expected.keys() - {package.filename for package in page.packages}):
                    yield f"simple/{project.name}/{name}: {file}: not listed"


class SidecarsEqual(Rule):
    """Each `.metadata` file equals the METADATA member of its wheel, byte by byte (PEP 658).

    Resolvers read the sidecar and never look into the wheel until it is installed.
    """

    id = "I002"

    def check(self, index: Opened) -> Iterator[str]:
        """Compare the digest of each sidecar with the record, and the record with the wheel."""
        for fact in index.state.files:
            path = index.out / "files" / f"{fact.filename}.metadata"
            if not path.is_file() or sha256_of(path) != fact.metadata_sha256:
                yield f"files/{path.name}: not the METADATA that was recorded"
        for fact, wheel in index.local():
            sidecar = wheel.with_name(f"{wheel.name}.metadata")
            try:
                metadata = read_metadata(wheel)
            except ArtefactError as err:
                yield f"files/{fact.filename}: {err.what}"
                continue
            if not sidecar.is_file() or sidecar.read_bytes() != metadata:
                yield f"files/{sidecar.name}: differs from METADATA in the wheel"


class RebuildIdentical(Rule):
    """Building the pages again from the facts gives the same bytes, and nothing else lies among them.

    So the folder was written by this version of vllm-spark and by nobody's hand.
    """

    id = "I003"

    def check(self, index: Opened) -> Iterator[str]:
        """Render everything and compare."""
        fresh = pages.render(index.state)
        fresh[folder.SUMS_FILE] = pages.sums(index.state, fresh)
        for path, data in fresh.items():
            there = index.out / path
            if not there.is_file() or there.read_bytes() != data:
                yield f"{path}: differs from what its facts give"
        for edit in folder.edits(index.out):
            if edit.split(": ")[0] not in fresh:
                yield edit


class ClientsInstall(Rule):
    """pip and uv can install the newest version of every project from the folder, with no network."""

    id = "I004"

    def check(self, index: Opened) -> Iterator[str]:
        """Ask both for a dry run, for the platform of each wheel."""
        for project in index.state.projects:
            files = index.state.of(project.name)
            for fact, _path in index.local():
                if fact.project == project.name and fact.version == files[-1].version:
                    yield from clients.refusals(index.out, fact)


class NothingDropped(Rule):
    """Every recorded wheel is here or hosted elsewhere, and all that an older copy had is still there.

    Only a yank may be new on an older file. Compare with the published copy before you publish the next.
    """

    id = "I005"

    def check(self, index: Opened) -> Iterator[str]:
        """Look for the files, then for the facts of the older copy."""
        for fact in index.state.files:
            if not fact.url and not (index.out / "files" / fact.filename).is_file():
                yield f"files/{fact.filename}: missing"
        if index.against is None:
            return
        known = {fact.filename: fact for fact in index.state.files}
        for old in index.against.files:
            new = known.get(old.filename)
            if new is None:
                yield f"{old.filename}: dropped"
            elif new != old and (old.yanked or msgspec.structs.replace(new, yanked=None) != old):
                yield f"{old.filename}: its facts were changed"
        for release in index.against.releases:
            if release not in index.state.releases:
                yield f"{release.project} {release.version}: its description was dropped or changed"


class FilesMatch(Rule):
    """Each wheel has the size and the SHA-256 that were recorded when it was added."""

    id = "I006"

    def check(self, index: Opened) -> Iterator[str]:
        """Read every byte of every wheel that is here."""
        for fact, path in index.local():
            if path.stat().st_size != fact.size or (found := sha256_of(path)) != fact.sha256:
                size = path.stat().st_size
                detail = f"{size} bytes, {fact.size} recorded" if size != fact.size else f"sha256 is {found}"
                yield f"files/{fact.filename}: altered: {detail}"


RULES: tuple[type[Rule], ...] = (
    LinksHashed,
    SidecarsEqual,
    RebuildIdentical,
    ClientsInstall,
    NothingDropped,
    FilesMatch,
)


@dataclass(frozen=True)
class Problem:
    """One violation."""

    rule: str
    what: str


@dataclass(frozen=True)
class Report:
    """All violations, and the wheels that lie elsewhere and were therefore not read."""

    problems: tuple[Problem, ...]
    files: int
    elsewhere: tuple[str, ...]


def verify(out: Path, *, against: Path | None = None, with_clients: bool = True) -> Report:
    """Ask every rule about the index in `out`.

    Args:
        against: an older copy of the folder, to prove that nothing was dropped.
        with_clients: also ask pip and uv (rule I004), which takes seconds.

    Raises:
        ArtefactError: `out` or `against` is no index at all.
        ToolMissing: there is no uv.
    """
    for place in (out, *([against] if against else [])):
        folder.read_sums(place)
    index = Opened(out, state.load(out), state.load(against) if against else None)
    problems = tuple(
        Problem(rule.id, what)
        for rule in RULES
        if with_clients or rule is not ClientsInstall
        for what in rule().check(index)
    )
    here = {fact.filename for fact, _path in index.local()}
    elsewhere = tuple(fact.filename for fact in index.state.files if fact.url and fact.filename not in here)
    return Report(problems, len(index.state.files), elsewhere)


def _read_page(project: str, path: Path) -> ProjectPage:
    data = path.read_bytes()
    if path.suffix == ".html":
        return ProjectPage.from_html(project, data)
    decoded = msgspec.json.decode(data)
    return ProjectPage.from_json_data(decoded)
