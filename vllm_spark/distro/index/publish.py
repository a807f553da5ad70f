"""One state of the folder gives way to the next, whole or not at all.

A change is first laid out in `.staging`; renaming that to `.commit` decides that it happens, and its files are
then moved into place, `SHA256SUMS` last. A run that dies before the rename left nothing; one that dies after it
is finished by the next.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark import paths
from vllm_spark.distro.index import pages
from vllm_spark.distro.index.folder import SUMS_FILE, require_folder, require_untouched
from vllm_spark.distro.index.state import STATE_FILE, State, load
from vllm_spark.errors import ArtefactError, IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Incoming", "Publish", "change"]

# File name of a new wheel -> where it is now, and its METADATA.
Incoming = dict[str, tuple["Path", bytes]]


@dataclass(frozen=True)
class Publish:
    """Lays a new state out beside the old one and switches over."""

    out: Path

    def __call__(self, state: State, incoming: Incoming) -> tuple[str, ...]:
        """Make `state` the folder's; the result is the paths that were written, none if it is already.

        Raises:
            IntegrityError: a wheel changed since its facts were read.
            ResourceError: no space or no permission; the folder is as it was.
        """
        fresh = pages.render(state)
        fresh[SUMS_FILE] = pages.sums(state, fresh)
        changed = {path: data for path, data in fresh.items() if not _holds(self.out / path, data)}
        if not changed and not incoming:
            return ()
        staging = self.out / ".staging"
        digests = {fact.filename: fact.sha256 for fact in state.files}
        try:
            for name, (wheel, metadata) in incoming.items():
                _copy(wheel, staging / "files" / name, digests[name])
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
def change(out: Path) -> Iterator[tuple[State, Publish]]:
    """Hold the index for one change: its state now, and the function that publishes the next one.

    Raises:
        ArtefactError: the folder was edited by hand.
        ConfigError: the path is a file, or the folder is not empty and not an index.
        ResourceError: another run is at work, or the folder cannot be written.
    """
    require_folder(out)
    with paths.resource_errors(out):
        _make_folder(out)
        with paths.lock(out / ".index.lock"):
            shutil.rmtree(out / ".staging", ignore_errors=True)
            _finish(out)
            require_untouched(out)
            state = load(out)
            _require_wheels(out, state)
            yield state, Publish(out)


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
        _make_folder((out / path).parent)
        (commit / path).replace(out / path)
    shutil.rmtree(commit)


def _make_folder(path: Path) -> None:
    """Make a folder that a web server can read, whatever the umask is."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir()
        path.chmod(0o755)


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
