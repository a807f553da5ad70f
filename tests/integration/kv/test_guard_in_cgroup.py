"""A real memory hog in a real cgroup: the kernel kills it alone, and with the guard it ends by itself."""

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_spark import proc
from vllm_spark.errors import ResourceError, ToolMissing
from vllm_spark.runtime.kv import cgroup
from vllm_spark.runtime.kv.memory import MIB

HOG = Path(__file__).with_name("hog.py")
LIMIT = 512 * MIB


def own_folder() -> cgroup.Hierarchy:
    """The memory-controlled group of this process, below which a test may make one."""
    texts = (Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    for hierarchy in cgroup.hierarchies(*texts):
        leaf = hierarchy.folders[0]
        if hierarchy.version == 1 and os.access(leaf, os.W_OK):
            return hierarchy
        # version 2: only a group without processes of its own may hand memory control down, so a sibling is made
        parent = leaf.parent if len(hierarchy.folders) > 1 else leaf
        control = parent / "cgroup.subtree_control"
        if os.access(control, os.W_OK) and "memory" in control.read_text().split():
            return cgroup.Hierarchy(2, (parent,))
    raise ToolMissing(
        "no writable cgroup with the memory controller",
        where="/sys/fs/cgroup",
        hint="run the tests as root, or under: systemd-run --user --scope -p Delegate=yes make test",
    )


@pytest.fixture
def limited() -> Iterator[Path]:
    hierarchy = own_folder()
    group = hierarchy.folders[0] / f"vllm-spark-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        (group / hierarchy.files.limit).write_text(str(LIMIT))
        swap = group / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        yield group
    finally:
        group.rmdir()


def hog(group: Path, mode: str, *extra: str) -> proc.Finished:
    argv = [sys.executable, str(HOG), str(group / "cgroup.procs"), mode, str(128 * MIB), str(64 * MIB), *extra]
    return proc.run(argv, check=False, timeout=60)


def test_without_the_guard_the_kernel_kills(limited: Path) -> None:
    assert hog(limited, "alone").status == -signal.SIGKILL


def test_with_the_guard_it_ends_by_itself_and_nothing_else_dies(limited: Path) -> None:
    neighbour = os.fork()
    if neighbour == 0:  # sits in the same group, and must survive
        (limited / "cgroup.procs").write_text("0")
        signal.pause()
        os._exit(0)
    try:
        done = hog(limited, "guarded")
        assert done.status == ResourceError.exit_code, done.output
        text = done.stderr.decode()
        assert "phase 'eat'" in text
        assert str(limited) in text
        assert f"(stopped at {64 / 1024:.2f} GiB" in text
        assert "python" in text.split("largest: ")[1].split(",")[0]
        assert os.waitpid(neighbour, os.WNOHANG) == (0, 0), "the kernel killed the neighbour"
    finally:
        os.kill(neighbour, signal.SIGKILL)
        os.waitpid(neighbour, 0)
