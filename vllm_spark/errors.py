"""Every error a user can see, and the exit code each one ends the process with.

A message answers three questions: what happened, where, and which command comes next. Anything that is
not a `SparkError` is a defect of ours and ends with code 1 and a traceback.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ArtefactError",
    "ConfigError",
    "DecisionNeeded",
    "IntegrityError",
    "NothingToDo",
    "PatchError",
    "ProcessError",
    "ResourceError",
    "RuleError",
    "SparkError",
    "ToolMissing",
]


class SparkError(Exception):
    """Base of all expected failures.

    Args:
        what: what happened, one sentence, no trailing full stop.
        where: the file, patch, key or URL concerned; empty when there is none.
        hint: the next command or action; empty when there is none.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}. Next: {self.hint}" if self.hint else text


class ConfigError(SparkError):
    """The user's input is wrong: an unknown profile, a malformed file, a bad option value."""

    exit_code = 2


class NothingToDo(SparkError):
    """The request is already satisfied."""

    exit_code = 3


class PatchError(SparkError):
    """A patch is malformed or does not apply."""

    exit_code = 4


class DecisionNeeded(SparkError):
    """A person must choose before the run can go on."""

    exit_code = 5


class RuleError(SparkError):
    """A lint rule (P…, W…, I…) is violated."""

    exit_code = 6


class ArtefactError(SparkError):
    """A wheel, index or image fails its audit or cannot be read as what it claims to be."""

    exit_code = 7


class ToolMissing(SparkError):
    """An external program that the step needs is not installed."""

    exit_code = 8


class IntegrityError(SparkError):
    """Bytes differ from their pinned or recorded hash, or a download is cut short."""

    exit_code = 9


class ResourceError(SparkError):
    """The machine refuses: no disk space, no permission, another run holds the lock."""

    exit_code = 10


class ProcessError(SparkError):
    """An external program failed; carries its command, status and last output."""

    exit_code = 11

    def __init__(self, argv: list[str], status: int, output: str, *, hint: str = "") -> None:
        tail = "\n".join(f"    {line}" for line in output.strip().splitlines()[-20:])
        what = f"exit status {status}" + (f"\n{tail}\n" if tail else "")
        super().__init__(what, where=" ".join(argv[:6]) + (" …" if len(argv) > 6 else ""), hint=hint)
        self.argv = argv
        self.status = status
        self.output = output
