"""Finding and reading a process's limits, version 1 and 2, on the host and in containers."""

from pathlib import Path

import pytest

from vllm_spark.errors import ResourceError
from vllm_spark.runtime.kv import cgroup
from vllm_spark.runtime.kv.memory import GIB

DATA = Path(__file__).resolve().parents[2] / "data" / "kv"


def found(own: str, mounts: str) -> list[tuple[int, list[str]]]:
    texts = (DATA / f"{own}.cgroup").read_text(), (DATA / f"{mounts}.mountinfo").read_text()
    return [(one.version, [str(folder) for folder in one.folders]) for one in cgroup.hierarchies(*texts)]


@pytest.mark.parametrize(
    ("own", "mounts", "expected"),
    [
        (
            "v1-host",
            "v1-host",
            [
                (1, [f"/sys/fs/cgroup/memory{tail}" for tail in ("/jobs/worker-1", "/jobs", "")]),
                (2, ["/sys/fs/cgroup/unified"]),
            ],
        ),
        ("v1-docker", "v1-docker", [(1, ["/sys/fs/cgroup/memory"])]),
        ("v1-host", "v1-docker", [(1, ["/sys/fs/cgroup/memory"])]),  # the host's path, the container's mount
        (
            "v2-service",
            "v2-service",
            [(2, [f"/sys/fs/cgroup{t}" for t in ("/system.slice/vllm.service", "/system.slice", "")])],
        ),
        ("v2-container", "v2-container", [(2, ["/sys/fs/cgroup"])]),
        ("v2-outside", "v2-container", [(2, ["/sys/fs/cgroup"])]),
    ],
)
def test_hierarchies(own: str, mounts: str, expected: list[tuple[int, list[str]]]) -> None:
    assert found(own, mounts) == expected


def test_mount_points_with_spaces() -> None:
    mounts = r"9 1 0:3 / /mnt/a\040b rw - cgroup2 none rw"
    assert cgroup.hierarchies("0::/x\n", mounts)[0].folders[0] == Path("/mnt/a b/x")


@pytest.mark.parametrize("text", ["", "garbage", "1 2 3", "0::/x"])
def test_mountinfo_that_is_none(text: str) -> None:
    assert cgroup.hierarchies("0::/\n", text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max\n", None), ("74088185856\n", 69 * GIB), ("9223372036854771712\n", None), ("0\n", 0)],
)
def test_limits(text: str, expected: int | None) -> None:
    assert cgroup.parse_limit(text, "memory.max") == expected


@pytest.mark.parametrize("text", ["", "-1", "lots", "1.5"])
def test_limits_that_are_none(text: str) -> None:
    with pytest.raises(ResourceError, match=r"memory\.max"):
        cgroup.parse_limit(text, "memory.max")


def make(folder: Path, version: int, limit: str, usage: str, stat: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = {2: ("memory.max", "memory.current"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes")}[version]
    for name, text in zip((*names, "memory.stat"), (limit, usage, stat), strict=True):
        (folder / name).write_text(text)


def test_container_with_cache(tmp_path: Path) -> None:
    make(tmp_path, 2, f"{69 * GIB}\n", f"{30 * GIB}\n", (DATA / "v2-container.stat").read_text())
    group = cgroup.read_group(tmp_path, 2)
    assert group is not None
    assert group.headroom == 57 * GIB


def test_version_1_counts_the_groups_below(tmp_path: Path) -> None:
    make(tmp_path, 1, f"{GIB}\n", f"{GIB}\n", f"inactive_file 0\ntotal_inactive_file {GIB // 4}\n")
    group = cgroup.read_group(tmp_path, 1)
    assert group is not None
    assert group.headroom == GIB // 4


@pytest.mark.parametrize(("limit", "usage", "cached"), [(1, 2, 0), (1, 2, 3), (0, 0, 0)])
def test_headroom_is_never_negative_nor_above_the_limit(limit: int, usage: int, cached: int) -> None:
    headroom = cgroup.Group("g", limit, usage, cached).headroom
    assert headroom is not None
    assert 0 <= headroom <= limit


def test_a_root_without_control_files_has_no_limit(tmp_path: Path) -> None:
    assert cgroup.read_group(tmp_path, 2) is None


@pytest.mark.parametrize(
    ("limit", "usage", "stat"),
    [
        ("x", "1", "inactive_file 1\n"),
        ("1", "x", "inactive_file 1\n"),
        ("1", "max", "inactive_file 1\n"),
        ("1", "1", ""),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, limit: str, usage: str, stat: str) -> None:
    make(tmp_path, 2, limit, usage, stat)
    with pytest.raises(ResourceError, match=str(tmp_path)):
        cgroup.read_group(tmp_path, 2)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "memory.max").mkdir()  # even root cannot read this
    with pytest.raises(ResourceError, match=r"memory\.max: cannot read it"):
        cgroup.read_group(tmp_path, 2)


def test_this_process() -> None:
    assert all(group.usage >= 0 for group in cgroup.read())
