"""The only place that starts other programs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.errors import ProcessError, ToolMissing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Finished", "require", "run"]

_PATIENCE = 5.0  # seconds that a program which is told to stop may take


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

    The program gets a process group of its own, which is ended when we are interrupted or the time runs out:
    ending a build driver alone would leave its compilers at work in a folder that is being removed.

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
        finished = _communicate(words, cwd, env, stdin or b"", timeout)
    except FileNotFoundError as err:
        if cwd is not None and not cwd.is_dir():
            raise
        raise ToolMissing("not installed", where=words[0], hint=f"install {words[0]}") from err
    except subprocess.TimeoutExpired as err:
        partial = (err.stdout or b"") + (err.stderr or b"")
        raise ProcessError(words, -9, f"{partial.decode(errors='replace')}\nno end after {timeout} s") from err
    if check and finished.status != 0:
        raise ProcessError(words, finished.status, finished.output)
    return finished


def _communicate(
    words: list[str], cwd: Path | None, env: Mapping[str, str] | None, stdin: bytes, timeout: float | None
) -> Finished:
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout)
        except BaseException:
            _stop(process)
            raise
    return Finished(process.returncode, stdout, stderr)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the whole group; politely first, for ninja keeps each compiler in yet another group and tells it."""
    with contextlib.suppress(ProcessLookupError):
        for sent in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(process.pid, sent)
            deadline = time.monotonic() + _PATIENCE
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)  # raises when nobody is left
                time.sleep(0.01)
