"""The patches folder: `series` in quilt's form, and the files that it lists."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from vllm_spark import paths
from vllm_spark.distro.series import patch as patches
from vllm_spark.errors import ConfigError, PatchError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from vllm_spark.distro.series.patch import Patch

__all__ = ["Folder", "Series", "SeriesFile", "load", "survey"]

_ENTRY = re.compile(r"[a-z0-9][a-z0-9-]*(?:/[a-z0-9][a-z0-9-]*)+\.patch")


@dataclass(frozen=True)
class SeriesFile:
    """The `series` file: its lines as written; comments and empty ones are kept."""

    lines: tuple[str, ...]

    @classmethod
    def parse(cls, data: bytes, where: str = "series") -> SeriesFile:
        """Read it; `format` gives the same bytes back.

        Raises:
            ConfigError: a line is neither empty, nor a comment, nor `folder/name.patch`.
        """
        try:
            text = data.decode()
        except UnicodeDecodeError as err:
            raise ConfigError(f"not UTF-8: {err}", where=where, hint="rewrite it as UTF-8") from err
        if text and not text.endswith("\n"):
            raise ConfigError("the last line has no end", where=where, hint="add a newline")
        lines = tuple(text.split("\n")[:-1])
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.startswith("#") and not _ENTRY.fullmatch(line):
                hint = "write folder/name.patch in lower case, alone on its line; comments start with #"
                raise ConfigError(f"malformed entry {line!r}", where=f"{where}:{number}", hint=hint)
        return cls(lines)

    def format(self) -> bytes:
        """The file's bytes."""
        return "".join(f"{line}\n" for line in self.lines).encode()

    @property
    def entries(self) -> tuple[str, ...]:
        """The listed paths in order."""
        return tuple(line for line in self.lines if line.strip() and not line.startswith("#"))

    def with_entries(self, entries: list[str]) -> SeriesFile:
        """The same comments with these entries: a comment stays above the entry that follows it."""
        above: dict[str, list[str]] = {}
        waiting: list[str] = []
        for line in self.lines:
            waiting.append(line)
            if line in self.entries:
                above[line], waiting = waiting[:-1], []
        body = [line for entry in entries for line in [*above.get(entry, []), entry]]
        return SeriesFile(tuple(body + waiting))


@dataclass(frozen=True)
class Folder:
    """What a patches folder holds, sound or not.

    Attributes:
        path: the folder.
        file: its `series`.
        patches: those listed, present and well-formed, in order, each once.
        missing: listed, not there.
        unlisted: there, not listed.
        doubled: listed more than once.
        malformed: what is wrong with those that cannot be read.
    """

    path: Path
    file: SeriesFile
    patches: tuple[Patch, ...]
    missing: tuple[str, ...]
    unlisted: tuple[str, ...]
    doubled: tuple[str, ...]
    malformed: tuple[PatchError, ...]

    def faults(self) -> Iterator[PatchError]:
        """Everything that keeps this folder from being a series."""
        yield from self.malformed
        listed = str(self.path / "series")
        for entry in self.doubled:
            yield PatchError(f"{entry} is listed more than once", where=listed, hint="remove the second line")
        for entry in self.missing:
            yield PatchError(f"{entry} is listed but does not exist", where=listed, hint="remove the line, or add it")
        for entry in self.unlisted:
            hint = "add the patch to series, or delete the file"
            yield PatchError(f"{entry} exists but is not listed", where=listed, hint=hint)


@dataclass(frozen=True)
class Series:
    """A sound series: every patch listed once, present, well-formed, with complete trailers."""

    patches: tuple[Patch, ...]
    file: SeriesFile = field(default=SeriesFile(()), compare=False)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over names and bytes in order."""
        state = hashlib.sha256()
        for patch in self.patches:
            data = patch.format()
            state.update(f"{patch.path} {len(data)}\n".encode() + data)
        return state.hexdigest()

    def get(self, name: str) -> Patch:
        """The patch of that name; a path with `.patch` will do.

        Raises:
            ConfigError: there is none.
        """
        stem = name.removeprefix("patches/").removesuffix(".patch")
        found = next((patch for patch in self.patches if patch.stem == stem), None)
        if found is None:
            known = ", ".join(patch.stem for patch in self.patches) or "none"
            raise ConfigError(f"no such patch; the series has: {known}", where=name, hint="vllm-spark series status")
        return found

    def without(self, names: Collection[str]) -> Series:
        """The series without these patches and without all that need them, however indirectly."""
        gone = set(names)
        kept: list[Patch] = []
        for patch in self.patches:
            if patch.stem in gone or gone.intersection(patch.meta.needs):
                gone.add(patch.stem)
            else:
                kept.append(patch)
        return Series(tuple(kept))


def survey(folder: Path) -> Folder:
    """Read a patches folder without judging it.

    Raises:
        ConfigError: there is no `series`, or it is malformed.
    """
    listing = folder / "series"
    try:
        file = SeriesFile.parse(listing.read_bytes(), str(listing))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError("no such file", where=str(listing), hint="name a folder that holds a series") from None
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*.patch")}
    counts = Counter(file.entries)
    good: list[Patch] = []
    malformed: list[PatchError] = []
    for entry in counts:
        if entry not in present:
            continue
        try:
            good.append(patches.parse(entry, (folder / entry).read_bytes()))
        except PatchError as err:
            malformed.append(err)
    return Folder(
        path=folder,
        file=file,
        patches=tuple(good),
        missing=tuple(entry for entry in counts if entry not in present),
        unlisted=tuple(sorted(present - set(counts))),
        doubled=tuple(entry for entry, count in counts.items() if count > 1),
        malformed=tuple(malformed),
    )


def load(folder: Path | None = None) -> Series:
    """Read a series that is to be used; None means that of the checkout.

    Raises:
        PatchError: the first thing that is wrong with it.
        ConfigError: there is no `series`, or it is malformed.
    """
    found = survey(folder or paths.repo_root() / "patches")
    for fault in found.faults():
        raise fault
    seen: set[str] = set()
    for patch in found.patches:
        for need in patch.meta.needs:
            if need not in seen:
                what = f"needs {need}, which does not stand before it in series"
                raise PatchError(what, where=patch.path, hint="vllm-spark series lint --explain P010")
        seen.add(patch.stem)
    return Series(found.patches, found.file)
