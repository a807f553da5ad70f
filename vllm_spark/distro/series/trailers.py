"""The trailers that say what a patch is: read loosely enough to tell a malformed one from a missing one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

__all__ = ["KINDS", "NAME", "Class", "Kind", "Meta", "Trailer", "meta", "paragraphs", "problems", "read"]

Kind = Literal["enable", "fix", "perf", "build", "test", "workaround"]
Class = Literal["python", "native"]
KINDS: tuple[str, ...] = get_args(Kind)

NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*(?:/[a-z0-9]+(?:-[a-z0-9]+)*)+")
_URL = r"https?://[^\s|]+"
_STRICT = re.compile(r"([A-Za-z][A-Za-z0-9-]*): (\S.*)")
_LOOSE = re.compile(
    r"\s*spark[-_ ]?(patch|kind|class|upstream|origin|drop[-_ ]?when|guard|needs)\b\s*(:|=|$)", re.IGNORECASE
)
_WHEN = r"(?:pr:\d+|commit:[0-9a-f]{7,40}|version>=\d+(?:\.\d+)*|symbol:\w+(?:\.\w+)*|never)"

# key -> (least count, most count, form of the value, the form in words)
_FORMS: dict[str, tuple[int, int, re.Pattern[str], str]] = {
    "Spark-Patch": (1, 1, NAME, "folder/name in lower case with dashes"),
    "Spark-Kind": (1, 1, re.compile("|".join(KINDS)), "one of " + ", ".join(KINDS)),
    "Spark-Class": (1, 1, re.compile("|".join(get_args(Class))), "python or native"),
    "Spark-Upstream": (
        1,
        1,
        re.compile(rf"proposed {_URL}|merged {_URL} in v\S+|declined {_URL}: \S.*|local: \S.*"),
        "'proposed URL', 'merged URL in vX', 'declined URL: reason' or 'local: reason'",
    ),
    "Spark-Origin": (1, 1, re.compile(rf"own|{_URL}@[0-9a-f]{{7,40}}(?:, adapted)?"), "'own' or 'URL@sha[, adapted]'"),
    "Spark-Drop-When": (
        1,
        1,
        re.compile(rf"{_WHEN}(?: \| {_WHEN})*"),
        "pr:N, commit:SHA, version>=X, symbol:dotted.name or never, joined by ' | '",
    ),
    "Spark-Guard": (1, 99, re.compile(r"[\w./-]+\.py(?:::\w+)+"), "a pytest id path.py::test, without [parameters]"),
    "Spark-Needs": (0, 99, NAME, "the Spark-Patch of another patch"),
    "Signed-off-by": (1, 99, re.compile(r"[^<>]+ <[^<>\s]+@[^<>\s]+>"), "Name <address>"),
}


@dataclass(frozen=True)
class Trailer:
    """One `Key: value` line of a commit message."""

    key: str
    value: str


@dataclass(frozen=True)
class Meta:
    """What the trailers of a well-formed patch say.

    Attributes:
        name: the patch's identity, stable for life, and its path without `.patch`.
        kind: what it is for.
        cls: `python` when it works in a tree whose compiled code is upstream's own, else `native`.
        upstream: where upstream stands on it.
        origin: who wrote it.
        drop_when: alternatives, each of which makes it superfluous.
        guards: tests that are red without it.
        needs: patches that must be applied before it.
    """

    name: str
    kind: Kind
    cls: Class
    upstream: str
    origin: str
    drop_when: tuple[str, ...]
    guards: tuple[str, ...]
    needs: tuple[str, ...]


def paragraphs(message: str) -> list[list[str]]:
    """The message's paragraphs, each as its lines."""
    return [block.split("\n") for block in re.split(r"\n(?:[ \t]*\n)+", message.strip("\n")) if block.strip()]


def read(message: str) -> tuple[Trailer, ...]:
    """The trailers of the last paragraph; none when any line of it is no trailer."""
    blocks = paragraphs(message)
    if not blocks:
        return ()
    found: list[Trailer] = []
    for line in blocks[-1]:
        match = _STRICT.fullmatch(line.rstrip())
        if match:
            found.append(Trailer(match[1], match[2]))
        elif line[:1] in " \t" and found:
            found[-1] = Trailer(found[-1].key, f"{found[-1].value} {line.strip()}")
        else:
            return ()
    return tuple(found)


def problems(message: str) -> list[str]:
    """Everything that is wrong with the trailers of a message, in words; empty when nothing is."""
    blocks = paragraphs(message)
    trailers = read(message)
    last = blocks[-1] if blocks else []
    strays = [line for block in blocks[:-1] for line in block if _LOOSE.match(line)]
    bad = [f"trailer outside the last paragraph: {line.strip()!r}" for line in strays]
    if not trailers:
        lines = [line for line in last if _LOOSE.match(line) or not _STRICT.fullmatch(line)]
        if any(_LOOSE.match(line) for line in last):
            wrong = next((line for line in lines if not _STRICT.fullmatch(line)), lines[0])
            return [*bad, f"malformed trailer line {wrong!r}: every line of the last paragraph must be 'Key: value'"]
        return [*bad, "no trailers: the last paragraph before --- must hold them"]
    known = {key.lower(): key for key in _FORMS}
    for trailer in trailers:
        right = known.get(trailer.key.lower())
        if right not in (None, trailer.key):
            bad.append(f"malformed trailer {trailer.key}: write {right}")
        elif right is None and re.match(r"spark", trailer.key, re.IGNORECASE):
            bad.append(f"unknown trailer {trailer.key}")
    for key, form in _FORMS.items():
        bad += _judge(key, [trailer.value for trailer in trailers if trailer.key == key], form)
    return bad


def _judge(key: str, values: list[str], form: tuple[int, int, re.Pattern[str], str]) -> list[str]:
    least, most, pattern, words = form
    if len(values) < least:
        return [f"missing trailer {key}"]
    if len(values) > most:
        return [f"trailer {key} stands {len(values)} times"]
    bad = [f"malformed trailer {key}: {value!r} is not {words}" for value in values if not pattern.fullmatch(value)]
    return bad + ([f"trailer {key} repeats a value"] if len(set(values)) < len(values) else [])


def meta(message: str) -> Meta:
    """What the trailers say; the caller has seen that `problems` finds none."""
    values: dict[str, list[str]] = {}
    for trailer in read(message):
        values.setdefault(trailer.key, []).append(trailer.value)
    return Meta(
        name=values["Spark-Patch"][0],
        kind=cast("Kind", values["Spark-Kind"][0]),
        cls=cast("Class", values["Spark-Class"][0]),
        upstream=values["Spark-Upstream"][0],
        origin=values["Spark-Origin"][0],
        drop_when=tuple(values["Spark-Drop-When"][0].split(" | ")),
        guards=tuple(values["Spark-Guard"]),
        needs=tuple(values.get("Spark-Needs", ())),
    )
