"""The guard's judgement on recorded and imagined traces, its sensors, and its thread with a tame ending."""

import csv
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_spark.errors import ResourceError
from vllm_spark.runtime.kv import consumers, guard, sensors
from vllm_spark.runtime.kv.memory import GIB, MIB

DATA = Path(__file__).resolve().parents[2] / "data" / "kv"
GB10 = guard.Limits.of(round(121.69 * GIB))


def trace(name: str) -> list[sensors.Sample]:
    with (DATA / f"{name}.csv").open() as file:
        return [sensors.Sample(float(t), int(kb) * 1024, float(stall)) for t, kb, stall in list(csv.reader(file))[1:]]


def verdicts(samples: list[sensors.Sample], limits: guard.Limits) -> list[guard.Verdict]:
    judge = guard.Judge(limits)
    return [judge(sample) for sample in samples]


@pytest.mark.parametrize(
    ("total", "soft", "hard"),
    [(round(121.69 * GIB), 3 * GIB, 3 * GIB // 2), (8 * GIB, 512 * MIB, 256 * MIB), (GIB, 256 * MIB, 128 * MIB)],
)
def test_limits(total: int, soft: int, hard: int) -> None:
    assert (guard.Limits.of(total).soft, guard.Limits.of(total).hard) == pytest.approx((soft, hard), rel=0.02)


@given(st.integers(1, 1 << 42), st.integers(0, 1 << 36))
def test_limits_leave_most_of_the_memory_and_of_the_reserve(total: int, reserve: int) -> None:
    limits = guard.Limits.of(total, reserve)
    assert 0 <= limits.hard <= limits.soft <= max(total // 4, total // 40)
    assert limits.soft <= reserve // 2


def test_a_gb10_that_runs_dry_is_stopped_with_seconds_to_spare() -> None:
    # 30 GB to 142 MB in 17 seconds.
    samples = trace("freeze-30gb-in-17s")
    found = verdicts(samples, GB10)
    end = found.index("hard")
    assert samples[end].headroom >= GB10.hard - 180 * MIB * 2
    assert samples[-1].time - samples[end].time >= 0.7
    assert found[found.index("soft") : end] == ["soft"] * (end - found.index("soft"))


def test_a_file_that_fills_the_page_cache_stops_nobody() -> None:
    assert set(verdicts(trace("page-cache-60gb"), GB10)) == {"fine"}


def test_a_real_hog_in_a_real_cgroup_is_seen_in_time() -> None:
    limits = guard.Limits(128 * MIB, 64 * MIB)
    samples = trace("hog-512mib")
    found = verdicts(samples, limits)
    assert found[0] == "fine"
    assert samples[found.index("hard")].headroom > 0


def test_stalls_near_the_limit_count_as_the_limit() -> None:
    limits = guard.Limits(GIB, GIB // 2)
    calm = [sensors.Sample(i / 10, 3 * GIB // 4, 0) for i in range(20)]
    stuck = [sensors.Sample(2 + i / 10, 3 * GIB // 4, i * 0.08) for i in range(1, 20)]
    assert set(verdicts(calm, limits)) == {"soft"}
    assert verdicts(calm + stuck, limits)[-1] == "hard"


def test_stalls_with_memory_to_spare_are_somebody_elses() -> None:
    samples = [sensors.Sample(i / 10, 50 * GIB, i * 0.1) for i in range(50)]
    assert set(verdicts(samples, GB10)) == {"fine"}


@given(st.lists(st.integers(0, 1 << 37), min_size=1, max_size=60))
def test_below_the_hard_limit_is_always_hard(headrooms: list[int]) -> None:
    samples = [sensors.Sample(i / 10, headroom) for i, headroom in enumerate(headrooms)]
    for sample, verdict in zip(samples, verdicts(samples, GB10), strict=True):
        assert (verdict == "hard") == (sample.headroom <= GB10.hard)
        assert (verdict == "fine") == (sample.headroom > GB10.soft)


def test_the_message_has_phase_numbers_and_consumers() -> None:
    top = [consumers.Consumer(7, "VLLM::EngineCore", 90 * GIB), consumers.Consumer(9, "cicc", 8 * GIB)]
    text = guard.message("warm up kernels", sensors.Sample(1, GIB, 2.5, "/sys/fs/cgroup/x"), GB10, top)
    for part in (
        "'warm up kernels'",
        "1.00 GiB left by /sys/fs/cgroup/x",
        "1.50 GiB",
        "VLLM::EngineCore (pid 7) 90.00 GiB",
    ):
        assert part in text
    assert "Next: " in text


def test_psi() -> None:
    text = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=2500000\n"
    assert sensors.parse_stall(text) == 2.5
    assert sensors.parse_stall(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n") == 0


def test_sensors_of_this_host() -> None:
    found = sensors.Sensors.open()
    try:
        assert found.sample().headroom > 0
    finally:
        found.close()


def test_sensors_without_meminfo(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="meminfo"):
        sensors.Sensors.open(tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    with pytest.raises(ResourceError, match="MemAvailable"):
        sensors.Sensors.open(tmp_path)


def fake_proc(tmp_path: Path, available: int) -> Path:
    (tmp_path / "meminfo").write_text(f"MemTotal: {1 << 30} kB\nMemAvailable: {available >> 10} kB\n")
    return tmp_path


def test_a_limited_group_is_sampled(tmp_path: Path) -> None:
    proc, group = fake_proc(tmp_path, 9 * GIB), tmp_path / "cg"
    (proc / "self").mkdir()
    (proc / "self/cgroup").write_text("0::/\n")
    (proc / "self/mountinfo").write_text(f"1 2 0:1 / {group} rw - cgroup2 none rw\n")
    group.mkdir()
    files = (("memory.max", GIB), ("memory.current", GIB), ("memory.stat", f"inactive_file {MIB}"))
    for name, value in files:
        (group / name).write_text(f"{value}\n")
    found = sensors.Sensors.open(proc)
    try:
        assert (found.sample().headroom, found.sample().limit) == (MIB, str(group))
        (group / "memory.current").write_text("0\n")
        assert found.sample().headroom == GIB
    finally:
        found.close()


def test_soft_limit_releases_and_raises_the_flag_then_recovers(tmp_path: Path) -> None:
    proc, released = fake_proc(tmp_path, 2 * GIB), threading.Event()
    watch = guard.watch(100 * GIB, limits=guard.Limits(3 * GIB, GIB), release=released.set, proc=proc)
    try:
        assert released.wait(5)
        assert guard.under_pressure()
        fake_proc(tmp_path, 90 * GIB)
        deadline = threading.Event()
        for _ in range(50):
            if not guard.under_pressure():
                break
            deadline.wait(0.1)
        assert not guard.under_pressure()
    finally:
        watch.close()


def test_hard_limit_ends_once_with_the_phase(tmp_path: Path) -> None:
    said: list[str] = []
    ended = threading.Event()

    def end(text: str) -> None:
        said.append(text)
        ended.set()

    found = guard.Guard(
        sensors.Sensors.open(fake_proc(tmp_path, MIB)), guard.Limits(3 * GIB, GIB), phase="load", end=end
    )
    found.start()
    try:
        assert ended.wait(5)
    finally:
        found.close()
    assert len(said) == 1
    assert "phase 'load'" in said[0]


def test_limits_may_change_while_it_runs(tmp_path: Path) -> None:
    said = threading.Event()
    opened = sensors.Sensors.open(fake_proc(tmp_path, 2 * GIB))
    found = guard.Guard(opened, guard.Limits(0, 0), end=lambda _text: said.set())
    found.start()
    try:
        assert not said.wait(0.4)
        found.limits = guard.Limits(4 * GIB, 3 * GIB)
        assert said.wait(5)
    finally:
        found.close()


def process(proc: Path, pid: int, parent: int, name: str, pages: int) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "comm").write_text(name + "\n")
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0")
    (folder / "statm").write_text(f"{pages * 2} {pages} 0 0 0 0 0\n")


def test_largest_processes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("")
    for pid, (name, pages) in enumerate([("a", 10), ("b) S 1", 30), ("c", 20), ("d", 1)], start=10):
        process(tmp_path, pid, 1, name, pages)
    (tmp_path / "99").mkdir()  # a process that ended while we looked
    found = consumers.largest(extra={13: 1 << 40}, proc=tmp_path)
    assert [(who.name, who.pid) for who in found] == [("d", 13), ("b) S 1", 11), ("c", 12)]


def test_descendants_deepest_first(tmp_path: Path) -> None:
    for pid, parent in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 4), (6, 1)]:
        process(tmp_path, pid, parent, "p (x) y", 1)
    found = consumers.descendants(2, proc=tmp_path)
    assert sorted(found) == [3, 4, 5]
    assert found.index(5) < found.index(4)
