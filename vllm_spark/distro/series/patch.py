"""One patch: a `git format-patch` file, kept byte for byte, with its message and its changes read out of it."""

from __future__ import annotations

import email.header
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from vllm_spark.distro.series import diff, trailers
from vllm_spark.errors import PatchError

__all__ = ["Patch", "parse"]

_FROM = re.compile(rb"From [0-9a-f]{40} Mon Sep 17 00:00:00 2001")
_HEADER = re.compile(r"([A-Za-z][A-Za-z-]*): (.*(?:\n[ \t].*)*)")
_REFRESH = "write it with `vllm-spark series export`"


@dataclass(frozen=True)
class Patch:
    """A patch file.

    Attributes:
        path: where it is, below the patches folder, with `.patch`.
        headers: mail headers in order, each with its value as written (folded lines included).
        message: what stands between the headers and `---`, as written.
        tail: everything from `---` on, as written.
    """

    path: str
    headers: tuple[tuple[str, str], ...]
    message: str
    tail: bytes
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
    def changes(self) -> tuple[diff.Change, ...]:
        """What it does, file by file."""
        before = self.format().removesuffix(self.tail)
        return diff.read(self.tail, self.path, before.count(b"\n") + 1)

    def format(self) -> bytes:
        """The file's bytes."""
        head = "".join(f"{name}: {value}\n" for name, value in self.headers)
        text = f"From {self.commit} Mon Sep 17 00:00:00 2001\n{head}\n{self.message}"
        return text.encode("utf-8", "surrogateescape") + self.tail


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
