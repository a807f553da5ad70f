"""One patch: a `git format-patch` file, kept byte for byte, with its message and its changes read out of it."""

from __future__ import annotations

import email.header
import re
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from typing import NoReturn

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchedFile, PatchSet

from vllm_spark.distro.series import trailers
from vllm_spark.errors import PatchError

__all__ = ["Change", "Hunk", "Patch", "parse"]

_FROM = re.compile(rb"From [0-9a-f]{40} Mon Sep 17 00:00:00 2001")
_HEADER = re.compile(r"([A-Za-z][A-Za-z-]*): (.*(?:\n[ \t].*)*)")
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@(?: .*)?", re.DOTALL)
_REFRESH = "write it with `vllm-spark series export`"


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


@dataclass(frozen=True)
class Patch:
    """A patch file.

    Attributes:
        path: where it is, below the patches folder, with `.patch`.
        headers: mail headers in order, each with its value as written (folded lines included).
        message: what stands between the headers and `---`, as written.
        diff: everything from `---` on, as written.
    """

    path: str
    headers: tuple[tuple[str, str], ...]
    message: str
    diff: bytes
    commit: str = "0" * 40

    @property
    def stem(self) -> str:
        """The path without `.patch`; the rules demand that it is the patch's name."""
        return self.path.removesuffix(".patch")

    @cached_property
    def subject(self) -> str:
        """The first line of the commit message, decoded."""
        raw = dict(self.headers).get("Subject", "")
        return str(email.header.make_header(email.header.decode_header(re.sub(r"\n[ \t]", " ", raw))))

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the trailers."""
        return tuple(trailers.problems(self.message))

    @cached_property
    def meta(self) -> trailers.Meta:
        """What the trailers say.

        Raises:
            PatchError: one is missing or malformed.
        """
        if self.problems:
            raise PatchError(self.problems[0], where=self.path, hint="vllm-spark series lint --explain P003")
        return trailers.meta(self.message)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What it does, file by file."""
        return tuple(_changes(self.path, self.diff))

    def format(self) -> bytes:
        """The file's bytes."""
        head = "".join(f"{name}: {value}\n" for name, value in self.headers)
        text = f"From {self.commit} Mon Sep 17 00:00:00 2001\n{head}\n{self.message}"
        return text.encode("utf-8", "surrogateescape") + self.diff


def parse(path: str, data: bytes) -> Patch:
    """Read a patch file; `format` gives the same bytes back.

    Raises:
        PatchError: it is no output of `git format-patch`, or a hunk is malformed; the message says where.
    """
    first, _, rest = data.partition(b"\n")
    if not _FROM.fullmatch(first):
        _malformed(path, 1, "the first line is not that of a git format-patch file")
    head, gap, body = rest.partition(b"\n\n")
    if not gap:
        _malformed(path, 2, "no empty line after the headers")
    headers = tuple(_headers(path, head.decode("utf-8", "surrogateescape")))
    cut = 0 if body.startswith(b"---\n") else body.find(b"\n---\n") + 1
    if cut == 0 and not body.startswith(b"---\n"):
        _malformed(path, data.count(b"\n"), "no --- line between the message and the changes")
    message = body[:cut].decode("utf-8", "surrogateescape")
    patch = Patch(path, headers, message, body[cut:], first[5:45].decode())
    _ = patch.changes  # read now: a malformed file must not wait for somebody to look inside
    return patch


def _malformed(path: str, line: int, what: str) -> NoReturn:
    raise PatchError(what, where=f"{path}:{line}", hint=_REFRESH)


def _headers(path: str, text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for number, block in enumerate(re.split(r"\n(?![ \t])", text), start=2):
        match = _HEADER.fullmatch(block)
        if match is None:
            _malformed(path, number, f"malformed header {block!r}")
        found.append((match[1], match[2]))
    missing = {"From", "Date", "Subject"} - {name for name, _ in found}
    if missing:
        _malformed(path, 2, f"no {' and no '.join(sorted(missing))} header")
    return found


def _changes(path: str, diff: bytes) -> list[Change]:
    # latin-1 maps each byte to one character, so that text in any encoding keeps its bytes
    text = diff.decode("latin-1")
    start = text.find("\ndiff --git ") + 1
    if start == 0:
        raise PatchError("no changes (no diff --git line)", where=path, hint=_REFRESH)
    lines = text[start:].split("\n")
    headers = [line for line in lines if line.startswith("@@")]
    for line in headers:
        if not _HUNK.fullmatch(line):
            raise PatchError(f"malformed hunk header {line!r}", where=path, hint=_REFRESH)
    try:
        files = PatchSet(StringIO(text[start:], newline="\n"))
    except UnidiffParseError as err:
        raise PatchError(f"malformed hunk: {err}", where=path, hint=_REFRESH) from err
    if sum(len(file) for file in files) != len(headers):
        raise PatchError("a hunk stands outside of any file", where=path, hint=_REFRESH)
    if len(files) != sum(line.startswith("diff --git ") for line in lines):
        raise PatchError("a file's header is malformed", where=path, hint=_REFRESH)
    return [_change(file) for file in files]


def _change(file: PatchedFile) -> Change:
    hunks = tuple(Hunk(hunk.source_start, tuple(line[1:].rstrip("\n") for line in hunk.source)) for hunk in file)
    added = tuple(line.value.rstrip("\n") for hunk in file for line in hunk if line.is_added)
    source = file.path if file.source_file == "/dev/null" else file.source_file.removeprefix("a/")
    return Change(file.path, source, bool(file.is_binary_file), added, file.removed, hunks)
