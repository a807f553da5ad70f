"""A real memory hog in a real cgroup: the kernel kills it alone, and with the guard it ends by itself."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from vllm_spark import proc
from vllm_spark.errors import ResourceError
from vllm_spark.runtime.kv.memory import MIB

HOG = Path(__file__).with_name("hog.py")
LIMIT = 512 * MIB


def hog(group: Path, mode: str, *extra: str) -> proc.Finished:
    argv = [sys.executable, str(HOG), str(group / "cgroup.procs"), mode, str(128 * MIB), str(64 * MIB), *extra]
    return proc.run(argv, check=False, timeout=60)


def test_without_the_guard_the_kernel_kills(limited: Callable[[int], Path]) -> None:
    assert hog(limited(LIMIT), "alone").status == -signal.SIGKILL


def test_with_the_guard_it_ends_by_itself_and_nothing_else_dies(limited: Callable[[int], Path]) -> None:
    group = limited(LIMIT)
    neighbour = os.fork()
    if neighbour == 0:  # sits in the same group, and must survive
        (group / "cgroup.procs").write_text("0")
        signal.pause()
        os._exit(0)
    try:
        done = hog(group, "guarded")
        assert done.status == ResourceError.exit_code, done.output
        text = done.stderr.decode()
        assert "phase 'eat'" in text
        assert str(group) in text
        assert f"(stopped at {64 / 1024:.2f} GiB" in text
        assert "python" in text.split("largest: ")[1].split(",")[0]
        assert os.waitpid(neighbour, os.WNOHANG) == (0, 0), "the kernel killed the neighbour"
    finally:
        os.kill(neighbour, signal.SIGKILL)
        os.waitpid(neighbour, 0)
