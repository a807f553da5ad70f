"""Upstream's source as a private git repository, made from pinned sdists.

Every release is one commit without parents, tagged `v<version>`. Its id depends on the sdist alone, not on which
other releases are there. Blob ids are content hashes, so a three-way merge finds the old side of any patch made on
any release in here, without network and without upstream's history.
"""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

from vllm_spark import console, paths
from vllm_spark.distro.upstream.fetch import fetch
from vllm_spark.distro.upstream.git import Repository
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from vllm_spark.distro.upstream.pins import FilePin, Upstream

__all__ = ["Mirror", "open_mirror"]

_LIMIT = 1 << 30  # bytes of source that we are willing to hold in memory; 0.33.0 has 0.13 GiB
_AUTHOR = b"vllm-spark <mirror@vllm-spark.invalid> 0 +0000"


class Mirror:
    """The repository of one upstream project.

    Args:
        project: its name on the package index.
        path: the bare repository; None is the one in the cache.
    """

    def __init__(self, project: str, path: Path | None = None) -> None:
        self.project = project
        self.path = path or paths.cache_dir("mirror") / f"{project}.git"

    @property
    def repository(self) -> Repository:
        """The repository itself; it exists once a release was added."""
        return Repository(self.path)

    def commit(self, version: str, sha256: str) -> str | None:
        """The commit of the release that was made from the sdist with this hash, if it is here."""
        if not (self.path / "HEAD").exists():
            return None
        done = self.repository("log", "-1", "--format=%H%n%B", f"refs/tags/v{version}", check=False)
        lines = done.text.split("\n")
        return lines[0] if done.status == 0 and f"sha256 {sha256}" in lines else None

    def ensure(self, version: str, pin: FilePin) -> str:
        """The commit of a release, fetched and imported if it is not here yet.

        Raises:
            ArtefactError: the sdist is no safe tar archive of one folder.
        """
        found = self.commit(version, pin.sha256)
        return found or self.add(version, fetch(self.project, pin), pin.sha256)

    def add(self, version: str, sdist: Path, sha256: str) -> str:
        """Import an sdist; the tag appears when everything is in, and two processes take turns."""
        with paths.resource_errors(self.path), paths.lock(self.path.with_suffix(".lock"), wait=True):
            found = self.commit(version, sha256)
            if found:
                return found
            paths.require_space(self.path, 4 * sdist.stat().st_size)
            with console.step(f"import {self.project} {version} into the mirror"):
                repository = Repository.create(self.path)
                title = f"{self.project} {version}\n\nsha256 {sha256}\n".encode()
                stream = _stream(sdist, f"refs/tags/v{version}".encode(), title)
                # checking a tree out is limited by inflating: light compression, and no deltas between strangers
                words = ("-c", "pack.compression=1", "fast-import", "--quiet", "--force", "--done", "--depth=0")
                repository(*words, stdin=stream)
        commit = self.commit(version, sha256)
        assert commit is not None, "fast-import ended well without its tag"  # noqa: S101 - a defect of ours
        return commit


def open_mirror(upstream: Upstream) -> tuple[Mirror, str]:
    """The mirror that holds the pinned base, and the base's commit."""
    mirror = Mirror(upstream.project)
    return mirror, mirror.ensure(upstream.version, upstream.file("sdist"))


def _stream(sdist: Path, ref: bytes, message: bytes) -> bytes:
    """The release as git fast-import's language: nothing of the archive ever touches the file system."""
    out = io.BytesIO()
    out.write(b"commit %b\ncommitter %b\ndata %d\n%b\n" % (ref, _AUTHOR, len(message), message))
    for path, mode, data in _members(sdist):
        quoted = path.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        out.write(b'M %b inline "%b"\ndata %d\n%b\n' % (mode, quoted, len(data), data))
    out.write(b"\ndone\n")
    return out.getvalue()


def _members(sdist: Path) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Path below the top folder, git mode and content of every file and symbolic link, in archive order."""
    total = 0
    tops: set[str] = set()
    try:
        with tarfile.open(sdist, "r:*") as archive:
            for member in archive:
                safe = tarfile.data_filter(member, "/nowhere")
                top, _, rest = safe.name.partition("/")
                tops.add(top)
                if safe.isdir():
                    continue
                if not rest or len(tops) > 1:
                    raise _refused(sdist, member.name, "not inside one top folder")
                total += safe.size
                if total > _LIMIT:
                    raise _refused(sdist, member.name, f"more than {_LIMIT >> 20} MiB of source")
                yield _entry(sdist, archive, safe, rest)
    except tarfile.FilterError as err:
        raise _refused(sdist, err.tarinfo.name, str(err)) from err
    except (tarfile.TarError, EOFError, OSError) as err:
        why = " ".join(str(err).split())  # tarfile gives each compression that it tried a line of its own
        raise ArtefactError(f"no readable tar archive ({why})", where=str(sdist), hint="delete it and retry") from err


def _entry(sdist: Path, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> tuple[bytes, bytes, bytes]:
    parts = path.split("/")
    if "\n" in path or "\0" in path or not all(parts) or {".", "..", ".git"} & {part.lower() for part in parts}:
        raise _refused(sdist, member.name, "a path that git would not take")
    name = path.encode("utf-8", "surrogateescape")
    if member.issym():
        return name, b"120000", member.linkname.encode("utf-8", "surrogateescape")
    source = archive.extractfile(member) if member.isfile() else None
    if source is None:
        raise _refused(sdist, member.name, "neither a file nor a symbolic link")
    executable = (member.mode or 0) & 0o100
    return name, b"100755" if executable else b"100644", source.read()


def _refused(sdist: Path, member: str, why: str) -> ArtefactError:
    return ArtefactError(f"member {member!r} refused: {why}", where=str(sdist), hint="do not use this archive")
