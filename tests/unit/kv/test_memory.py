"""What is free: captured inputs of a GB10, a discrete GPU, a container and a machine with tenants."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_spark.errors import ConfigError, ResourceError
from vllm_spark.runtime.kv import cgroup, memory
from vllm_spark.runtime.kv.memory import GIB

DATA = Path(__file__).resolve().parents[2] / "data" / "kv"
GB10_TOTAL = round(121.69 * GIB)


def meminfo(name: str) -> memory.Meminfo:
    return memory.parse_meminfo((DATA / f"{name}.meminfo").read_text())


def gb10(free: float) -> memory.Device:
    return memory.Device("NVIDIA GB10", GB10_TOTAL, round(free * GIB), integrated=True)


def group(limit: float | None, usage: float, cached: float) -> cgroup.Group:
    return cgroup.Group("g", None if limit is None else round(limit * GIB), round(usage * GIB), round(cached * GIB))


def test_page_cache_does_not_count_as_used_on_unified_memory() -> None:
    before = memory.room(meminfo("gb10-before"), [], gb10(103.25))
    after = memory.room(meminfo("gb10-after-60gb-file"), [], gb10(41.52))
    assert abs(before.available - after.available) <= 0.3 * GIB
    assert before.limit == "MemAvailable"
    assert abs(103.25 - 41.52) > 60, "the driver's own figure would have lost the file"


@pytest.mark.parametrize(
    ("limit", "expected", "source"), [(69, 57, "g"), (None, 115, "MemAvailable"), (200, 115, "MemAvailable")]
)
def test_a_container_is_held_to_its_limit(limit: float | None, expected: float, source: str) -> None:
    found = memory.room(meminfo("gb10-container"), [group(limit, 30, 18)], gb10(90))
    assert found.available == pytest.approx(expected * GIB, abs=2048)
    assert found.limit == source
    assert found.total == min(meminfo("gb10-container").total, (limit or 1000) * GIB)


def test_tenants_count_as_taken_on_unified_memory() -> None:
    assert memory.room(meminfo("gb10-tenant"), [], gb10(40.1)).available == pytest.approx(52 * GIB, abs=2048)


def test_a_discrete_gpu_is_asked_itself() -> None:
    h100 = memory.Device("NVIDIA H100", round(79.1 * GIB), round(60 * GIB), integrated=False)
    found = memory.room(meminfo("gb10-tenant"), [group(1, 1, 0)], h100)
    assert (found.available, found.total, found.limit) == (h100.free, h100.total, "NVIDIA H100")


def test_a_discrete_gpu_without_figures_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes"):
        memory.room(meminfo("gb10-before"), [], memory.Device("vGPU", 0, 0, integrated=False))


def test_an_integrated_gpu_without_figures_uses_the_host() -> None:
    found = memory.room(meminfo("gb10-before"), [], memory.Device("NVIDIA GB10", 0, 0, integrated=True))
    assert found.total == meminfo("gb10-before").total


@given(st.lists(st.integers(0, 1 << 40), min_size=1), st.randoms())
def test_order_of_samples_does_not_matter(samples: list[int], random: object) -> None:
    shuffled = list(samples)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert memory.lowest(shuffled) == memory.lowest(samples) <= min(samples)


def test_no_samples_is_an_error() -> None:
    with pytest.raises(ConfigError):
        memory.lowest([])


@given(st.integers(0, 1 << 38), st.integers(0, 1 << 30), st.integers(1, 1 << 38), st.integers(0, 1 << 38))
def test_room_never_exceeds_any_limit(available: int, more: int, limit: int, usage: int) -> None:
    host = memory.Meminfo(1 << 39, available, available, 0)
    richer = memory.Meminfo(1 << 39, available + more, available + more, 0)
    groups = [cgroup.Group("g", limit, usage, 0)]
    found = memory.room(host, groups, None)
    assert 0 <= found.available <= min(available, limit)
    assert memory.room(richer, groups, None).available >= found.available


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no MemTotal, MemFree, MemAvailable, Cached"),
        ("MemTotal: 12 kB\nMemFree: 1 kB\nCached: 1 kB\n", "no MemAvailable"),
        ("MemTotal: many kB\n", "cannot read the line 'MemTotal: many kB'"),
        ("MemTotal: 12 MB\n", "cannot read the line"),
        ("MemTotal: -12 kB\n", "cannot read the line"),
    ],
)
def test_unreadable_meminfo(text: str, what: str) -> None:
    with pytest.raises(ResourceError, match=what):
        memory.parse_meminfo(text)


def test_meminfo_of_a_real_kernel() -> None:
    found = meminfo("host-6.18")
    assert found.total == 24684096 * 1024
    assert found.total > found.available > found.free > found.cached


def test_reading_this_host() -> None:
    host, groups = memory.read_host()
    assert 0 < memory.room(host, groups, None).available <= host.total


def test_missing_proc(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="mount /proc"):
        memory.read_host(tmp_path)


def test_proc_without_cgroups(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text((DATA / "gb10-before.meminfo").read_text())
    assert memory.read_host(tmp_path)[1] == []
