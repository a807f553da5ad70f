"""The only module that talks to people. Results go to standard output, talk to standard error.

`rich` draws tables and progress bars where standard error is a terminal; elsewhere plain lines appear,
so that a log stays readable. It is imported on first use: the wheel's runtime does not depend on it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vllm_spark.errors import SparkError

__all__ = ["Progress", "error", "progress", "result", "say", "set_verbosity", "step", "table", "trace", "warn"]

_verbosity = 0
_PLAIN_PERIOD = 5.0  # seconds between two plain progress lines: enough to see life, few enough to read


def set_verbosity(level: int) -> None:
    """-1 is quiet, 0 normal, 1 and more also shows the commands that are run."""
    global _verbosity  # noqa: PLW0603 - one process, one console
    _verbosity = level


def result(text: str) -> None:
    """Print what the user asked for."""
    print(text, flush=True)


def say(text: str) -> None:
    """Tell a person how the work goes."""
    if _verbosity >= 0:
        print(text, file=sys.stderr, flush=True)


def trace(text: str) -> None:
    """Tell a person who asked for details (-v)."""
    if _verbosity >= 1:
        print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Say something that must be seen but does not stop the run."""
    print(f"warning: {text}", file=sys.stderr, flush=True)
    _annotate("warning", text)


def error(err: SparkError) -> None:
    """Print one expected failure: what, where, next command."""
    print(f"error: {err}", file=sys.stderr, flush=True)
    _annotate("error", str(err))


def _annotate(kind: str, text: str) -> None:
    """Repeat a message in the form that GitHub shows beside the change."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        print(f"::{kind}::{escaped}", file=sys.stderr, flush=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as a result: aligned columns, no colour, the last column unbounded."""
    cells = [list(columns), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    rule = "  ".join("-" * width for width in widths)
    print("\n".join([title, *lines[:1], rule, *lines[1:], ""]), flush=True)


@contextlib.contextmanager
def step(name: str, times: dict[str, float] | None = None) -> Iterator[None]:
    """Announce a step and say how long it took; `times` collects the seconds by name."""
    say(f"{name} …")
    start = time.monotonic()
    yield
    seconds = time.monotonic() - start
    if times is not None:
        times[name] = seconds
    say(f"{name}: {seconds:.1f} s")


@dataclass
class Progress:
    """A count that moves towards `total`; `move` draws it, and is set by whoever made it."""

    name: str
    total: float
    unit: str
    move: Callable[[Progress, float], None]
    done: float = 0.0

    def advance(self, amount: float) -> None:
        """Move on by `amount` units."""
        self.done += amount
        self.move(self, amount)

    def __str__(self) -> str:
        if self.unit == "B":
            return f"{self.name}: {self.done / 2**20:.0f} of {self.total / 2**20:.0f} MiB"
        return f"{self.name}: {self.done:.0f} of {self.total:.0f} {self.unit}"


def _plain_mover() -> Callable[[Progress, float], None]:
    last = time.monotonic()

    def move(progress: Progress, _amount: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PLAIN_PERIOD:
            last = now
            say(f"  {progress}")

    return move


@contextlib.contextmanager
def progress(name: str, total: float, unit: str = "B") -> Iterator[Progress]:
    """Show how far `name` is: a bar on a terminal, a line every few seconds elsewhere."""
    if not sys.stderr.isatty() or _verbosity < 0:
        yield Progress(name, total, unit, _plain_mover())
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    count = DownloadColumn(binary_units=True) if unit == "B" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(name, total=total)
        yield Progress(name, total, unit, lambda now, amount: bars.update(task, advance=amount, description=now.name))
