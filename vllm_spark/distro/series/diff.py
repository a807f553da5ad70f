"""The changes in a patch. unidiff reads them; what it would let pass is refused here first.

A lenient reader takes a cut or hand-edited patch for a shorter one. Every line of git's format has its place, so any
other line, or a hunk whose counts do not add up, means that the file is not what git wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from unidiff.patch import PatchedFile, PatchSet

from vllm_spark.errors import PatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Change", "Hunk", "read"]

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@(?: .*)?", re.DOTALL)
_INDEX = re.compile(r"index [0-9a-f]{40}\.\.[0-9a-f]{40}(?: \d{6})?")
_EXTENDED = re.compile(
    r"(?:old mode|new mode|deleted file mode|new file mode) \d{6}"
    r"|(?:dis)?similarity index \d+%|(?:rename|copy) (?:from|to) .+|(?:---|\+\+\+) .+|GIT binary patch"
)
_BINARY = re.compile(r"(?:literal|delta) \d+|[A-Za-z][!-~]+|")
_WHOLE = ("old mode", "new mode", "deleted file", "new file", "rename to", "copy to", "GIT binary patch")


@dataclass(frozen=True)
class Hunk:
    """One hunk: the line where upstream's side starts, and that side's lines without prefix, as latin-1 text."""

    start: int
    source: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """What a patch does to one file.

    Attributes:
        path: the file after the change, or before it where the change deletes it.
        source: the file before the change; equal to `path` unless renamed.
        binary: a change of bytes that no hunk shows.
        added: lines added, with their bytes as latin-1 text, without the leading `+`.
        removed: how many lines go.
        hunks: in the order of the file.
    """

    path: str
    source: str
    binary: bool
    added: tuple[str, ...]
    removed: int
    hunks: tuple[Hunk, ...]


def read(diff: bytes, where: str, first: int) -> tuple[Change, ...]:
    """The changes in what follows a patch's message.

    Args:
        diff: from the line `---` on.
        where: the patch, for messages.
        first: the number of that line in the file.

    Raises:
        PatchError: it is not what git writes; the message says which line.
    """
    # latin-1 maps each byte to one character, so that text in any encoding keeps its bytes
    stat, found, text = diff.decode("latin-1").partition("\ndiff --git ")
    first += stat.count("\n") + 1
    if not found:
        raise _malformed("no changes (no diff --git line)", where, first)
    text = f"diff --git {text}"
    _check(text, where, first)
    return tuple(_change(file) for file in PatchSet(StringIO(text, newline="\n")))


def _malformed(what: str, where: str, line: int) -> PatchError:
    return PatchError(what, where=f"{where}:{line}", hint="take the file from git, or write it anew with series export")


def _check(text: str, where: str, first: int) -> None:
    """Give every line its place, or say which has none."""
    if not text.endswith("\n"):
        raise _malformed("the last line has no end: the file is cut short", where, first + text.count("\n"))
    lines = enumerate(text.split("\n")[:-1], first)
    section: list[str] = []
    number = first
    for number, line in lines:
        if line.startswith("diff --git "):
            _complete(section, where, number)
            section = [line]
        elif line.startswith("@@"):
            _consume(line, lines, where, number)
            section.append("@@")
        elif _EXTENDED.fullmatch(line) or _INDEX.fullmatch(line):
            section.append(line)
        elif "GIT binary patch" in section and _BINARY.fullmatch(line):
            continue
        elif not (line.startswith("\\ ") and section[-1] == "@@"):
            raise _malformed(f"malformed hunk or header: {line[:60]!r} has no place here", where, number)
    _complete(section, where, number)


def _complete(section: list[str], where: str, number: int) -> None:
    """A file's part holds a hunk, or is one of the changes that need none."""
    if section and "@@" not in section and not any(line.startswith(_WHOLE) for line in section):
        raise _malformed("a file without its changes: the file is cut short", where, number)


def _consume(header: str, lines: Iterator[tuple[int, str]], where: str, number: int) -> None:
    """Read as many lines as the hunk's header promises."""
    match = _HUNK.fullmatch(header)
    if match is None:
        raise _malformed(f"malformed hunk header {header!r}", where, number)
    old, new = (int(count) if count is not None else 1 for count in match.groups())
    while old > 0 or new > 0:
        number, line = next(lines, (number, ""))
        kind = line[:1]
        if kind == "\\":
            continue
        if kind not in (" ", "+", "-"):
            raise _malformed(f"malformed hunk: {old} old and {new} new lines are missing here", where, number)
        old -= kind in (" ", "-")
        new -= kind in (" ", "+")
    if old < 0 or new < 0:
        raise _malformed("malformed hunk: more lines than its header says", where, number)


def _change(file: PatchedFile) -> Change:
    hunks = tuple(Hunk(hunk.source_start, tuple(line[1:].rstrip("\n") for line in hunk.source)) for hunk in file)
    added = tuple(line.value.rstrip("\n") for hunk in file for line in hunk if line.is_added)
    source = file.path if file.source_file == "/dev/null" else file.source_file.removeprefix("a/")
    return Change(file.path, source, bool(file.is_binary_file), added, file.removed, hunks)
