"""The only place that starts other programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.errors import ProcessError, ToolMissing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Finished", "require", "run"]


@dataclass(frozen=True)
class Finished:
    """What a program left behind."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are no UTF-8 survive as surrogates."""
        return self.stdout.decode("utf-8", "surrogateescape")

    @property
    def output(self) -> str:
        """Both streams as text, for messages."""
        return self.text + self.stderr.decode("utf-8", "surrogateescape")


def require(tool: str, *, hint: str) -> str:
    """The absolute path of `tool`.

    Raises:
        ToolMissing: it is not on PATH; the message carries `hint`.
    """
    found = shutil.which(tool)
    if found is None:
        raise ToolMissing("not installed", where=tool, hint=hint)
    return found


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    check: bool = True,
    timeout: float | None = None,
) -> Finished:
    """Run `argv` without a shell and keep its output.

    Args:
        env: the whole environment; None inherits ours.
        stdin: bytes for standard input; None means an empty one, so that nothing waits for a person.
        check: raise when the status is not 0.
        timeout: seconds; the program is killed after them.

    Raises:
        ToolMissing: there is no such program.
        ProcessError: `check` and the status is not 0, or the time ran out.
    """
    words = [os.fspath(word) for word in argv]
    console.trace("+ " + " ".join(words))
    try:
        done = subprocess.run(
            words, cwd=cwd, env=env, input=stdin or b"", capture_output=True, check=False, timeout=timeout
        )
    except FileNotFoundError as err:
        if cwd is not None and not cwd.is_dir():
            raise
        raise ToolMissing("not installed", where=words[0], hint=f"install {words[0]}") from err
    except subprocess.TimeoutExpired as err:
        partial = (err.stdout or b"") + (err.stderr or b"")
        raise ProcessError(words, -9, f"{partial.decode(errors='replace')}\nno end after {timeout} s") from err
    finished = Finished(done.returncode, done.stdout, done.stderr)
    if check and finished.status != 0:
        raise ProcessError(words, finished.status, finished.output)
    return finished
