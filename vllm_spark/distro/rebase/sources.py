"""Where the new release's text comes from: an sdist of the index, a file or folder at hand, or a clone of upstream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.distro.rebase.history import History, open_clone
from vllm_spark.distro.rebase.known import known, pin_of
from vllm_spark.distro.rebase.merge import Bench
from vllm_spark.distro.rebase.origin import Release
from vllm_spark.distro.upstream.fetch import sha256_of
from vllm_spark.distro.upstream.git import Repository
from vllm_spark.distro.upstream.mirror import open_mirror
from vllm_spark.distro.upstream.pins import FilePin
from vllm_spark.errors import ConfigError, IntegrityError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.upstream.mirror import Mirror
    from vllm_spark.distro.upstream.pins import Upstream

__all__ = ["Ground", "open_ground"]


@dataclass(frozen=True)
class Ground:
    """Both releases on one bench.

    Attributes:
        origin: where the new release's text is from, for the report.
        history: upstream's commits between the releases, where a clone has both.
        unknown: why there is no history; empty when there is.
        pin: the new release's sdist, where that was read.
    """

    bench: Bench
    old: Release
    new: Release
    origin: str
    history: History | None
    unknown: str
    pin: FilePin | None = None


def open_ground(
    path: Path,
    upstream: Upstream,
    version: str,
    patches: Path,
    *,
    source: Path | None = None,
    history: Path | None = None,
) -> Ground:
    """Bring both releases together.

    Args:
        path: the git directory to work in; made if it is not there.
        upstream: the pins of the old release.
        version: the new release.
        patches: the patches folder, which may hold pins of other releases.
        source: an sdist, a folder or a clone that has the new release; None takes the sdist from the index.
        history: a clone; None takes `source` if that is one.

    Raises:
        ConfigError: there is no such release, folder, file or tag.
        IntegrityError: an sdist is not what is pinned.
        ArtefactError: an sdist is no safe tar archive.
    """
    mirror, base = open_mirror(upstream)
    bench = Bench(Repository.create(path, borrow=mirror.path).path)
    pin: FilePin | None = None
    if source is None or source.is_file():
        commit, pin = _sdist(mirror, upstream, version, patches, source)
        origin = f"{pin.name}, SHA-256 {pin.sha256}"
    elif not source.is_dir():
        raise ConfigError("no such file or folder", where=str(source), hint="name an sdist, a folder or a clone")
    elif _is_clone(source):
        commit, origin = _clone(bench, source, version)
        history = history or source
    else:
        commit, origin = _folder(bench, source, version)
    old, new = Release(upstream.version, base), Release(version, commit)
    range_, unknown = _history(history, old.version, new.version)
    return Ground(bench, old, new, origin, range_, unknown, pin)


def _sdist(mirror: Mirror, upstream: Upstream, version: str, patches: Path, source: Path | None) -> tuple[str, FilePin]:
    if source is None:
        pin = pin_of(upstream, version, patches)
        return mirror.ensure(version, pin), pin
    digest, wanted = sha256_of(source), known(upstream, version, patches)
    if wanted is not None and wanted.sha256 != digest:
        what = f"SHA-256 {digest}, the pin says {wanted.sha256}"
        raise IntegrityError(what, where=str(source), hint="find out which is right before you change the pin")
    name = f"{upstream.project}-{version}.tar.gz"
    pin = FilePin(role="sdist", name=name, sha256=digest, size=source.stat().st_size)
    return mirror.add(version, source, digest), pin


def _is_clone(folder: Path) -> bool:
    return (folder / ".git").exists() or (folder / "HEAD").is_file()


def _clone(bench: Bench, folder: Path, version: str) -> tuple[str, str]:
    """The tag of a clone, whose objects are borrowed."""
    clone = open_clone(folder)
    commit = clone.resolve(f"refs/tags/v{version}")
    if commit is None:
        raise ConfigError(f"no tag v{version}", where=str(folder), hint=f"git -C {folder} fetch --tags")
    objects = (clone.path / clone.line("rev-parse", "--git-path", "objects")).resolve()
    alternates = bench.path / "objects" / "info" / "alternates"
    lines = alternates.read_text().splitlines()
    if str(objects) not in lines:
        alternates.write_text("".join(f"{line}\n" for line in [*lines, str(objects)]))
    return commit, f"tag v{version} of {folder}, commit {commit}"


def _folder(bench: Bench, folder: Path, version: str) -> tuple[str, str]:
    """Everything in a folder but version control's own."""
    with console.step(f"read {folder}"):
        reader = Bench(bench.path, folder)
        reader("read-tree", "--empty")
        reader("add", "--all", "--force", ".")
        commit = bench.commit(bench.line("write-tree"), message=f"{version} from a folder")
    return commit, f"folder {folder}"


def _history(clone: Path | None, old: str, new: str) -> tuple[History | None, str]:
    if clone is None:
        return None, "no clone given (--history): commits and pull requests between the releases were not looked at"
    repository = open_clone(clone)
    missing = [f"v{version}" for version in (old, new) if repository.resolve(f"refs/tags/v{version}") is None]
    if missing:
        return None, f"{clone} has no tag {' and no tag '.join(missing)}: commits and pull requests were not looked at"
    return History(repository, f"v{old}", f"v{new}"), ""
