"""Rules about the text of a patch: what it says of itself, and the lines that it brings."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from vllm_spark.distro.series import trailers
from vllm_spark.distro.series.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from vllm_spark.distro.series.patch import Patch
    from vllm_spark.distro.series.rules.base import Context, Violation

__all__ = ["CleanText", "GuardExists", "Trailers", "Why"]

_NATIVE = re.compile(
    r"(csrc|cmake|rust)/.*|CMakeLists\.txt|setup\.py|pyproject\.toml|.*\.(cu|cuh|c|cc|cpp|h|hpp|rs|cmake)"
)


class Trailers(Rule):
    """The trailers are complete, well-formed and true.

    Tools read a patch's trailers: exactly one paragraph of them, the last before `---`, with Spark-Patch (equal to
    the path), Spark-Kind, Spark-Class, Spark-Upstream, Spark-Origin, Spark-Drop-When, at least one Spark-Guard, any
    Spark-Needs, and Signed-off-by. Spark-Class must be true: a python patch changes something under `vllm/` and
    nothing that is compiled, a native one changes something that is. docs/series.md shows the form of each.
    """

    id = "P003"

    def check(self, context: Context) -> Iterator[Violation]:
        """Judge the message, then compare it with the path and the files."""
        for patch in context.folder.patches:
            for problem in patch.problems:
                yield self.breach(patch.path, problem)
        for patch in context.sound:
            if patch.meta.name != patch.stem:
                yield self.breach(patch.path, f"Spark-Patch says {patch.meta.name}, the path says {patch.stem}")
            yield from self._class(patch)

    def _class(self, patch: Patch) -> Iterator[Violation]:
        files = {path for change in patch.changes for path in (change.path, change.source)}
        native = sorted(file for file in files if _NATIVE.fullmatch(file))
        if patch.meta.cls == "native" and not native:
            yield self.breach(patch.path, "Spark-Class is native, but nothing that it changes is compiled")
        if patch.meta.cls == "python" and native:
            yield self.breach(patch.path, f"Spark-Class is python, but it changes {native[0]}")
        if patch.meta.cls == "python" and not any(file.startswith("vllm/") for file in files):
            yield self.breach(patch.path, "Spark-Class is python, but it changes nothing under vllm/")


class Why(Rule):
    """The message says why, in at least one sentence.

    Who moves the series to the next release has to know what a patch is for, or cannot judge what became of it. The
    subject reads `area: what it does`, and at least one paragraph above the trailers says why, in sentences: what goes
    wrong without it, and why no plugin can do it.
    """

    id = "P004"

    def check(self, context: Context) -> Iterator[Violation]:
        """Look for a subject with an area and a paragraph with a sentence."""
        for patch in context.folder.patches:
            if not re.fullmatch(r"[A-Za-z0-9][\w/.-]*: \S.*", patch.subject):
                yield self.breach(patch.path, f"subject {patch.subject!r} is not of the form 'area: what it does'")
            blocks = trailers.paragraphs(patch.message)
            prose = blocks[:-1] if trailers.read(patch.message) else blocks
            if not any(self._is_prose(" ".join(lines)) for lines in prose):
                yield self.breach(patch.path, "no paragraph says why")

    @staticmethod
    def _is_prose(text: str) -> bool:
        return len(text.split()) >= 5 and re.search(r"[.!?][\"')]?(\s|$)", text) is not None


class GuardExists(Rule):
    """Every guard exists.

    A guard is the proof that a patch still does its work. Each Spark-Guard names a test function that exists in
    this checkout; `vllm-spark series guards` shows that it is red without the patch.
    """

    id = "P005"

    def check(self, context: Context) -> Iterator[Violation]:
        """Find each guard's function in its file."""
        for patch in context.sound:
            for guard in patch.meta.guards:
                file, *names = guard.split("::")
                path = context.root / file
                if not path.is_file():
                    yield self.breach(patch.path, f"guard {guard}: no such file")
                elif not _defines(path, names):
                    yield self.breach(patch.path, f"guard {guard}: the file has no such test")


def _defines(path: Path, names: list[str]) -> bool:
    body: list[ast.stmt] = ast.parse(path.read_bytes()).body
    for depth, name in enumerate(names, start=1):
        wanted = (ast.FunctionDef, ast.AsyncFunctionDef) if depth == len(names) else (ast.ClassDef,)
        node = next((item for item in body if isinstance(item, wanted) and item.name == name), None)
        if node is None:
            return False
        body = node.body
    return True


class CleanText(Rule):
    """No trailing blanks, carriage returns or binary changes.

    Trailing blanks and carriage returns are lost by editors and mail, and then the patch does not apply; binary
    changes cannot be reviewed. A patch brings text lines that end in a plain newline, without blanks before it.
    """

    id = "P009"

    def check(self, context: Context) -> Iterator[Violation]:
        """Look at every added line."""
        for patch in context.folder.patches:
            if b"\r" in patch.format():
                yield self.breach(patch.path, "contains carriage returns")
            for change in patch.changes:
                if change.binary:
                    yield self.breach(patch.path, f"changes the binary file {change.path}")
                bad = [line for line in change.added if line.rstrip("\r") != line.rstrip()]
                if bad:
                    yield self.breach(patch.path, f"adds trailing blanks to {change.path}: {bad[0]!r}")
