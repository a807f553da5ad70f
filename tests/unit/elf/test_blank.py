import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_spark.distro.elf.blank import check_blanked, plan_blanking
from vllm_spark.distro.elf.fatbin import container_header, containers
from vllm_spark.distro.elf.report import inspect_extension, kernel_support, lost_kernels
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import Edit, EditedSource, FileSource, chunks
from vllm_spark.distro.elf.target import Capability, Support
from vllm_spark.errors import ArtefactError

Open = Callable[[Path], FileSource]
SUFFIXES = ("sm_120f", "sm_121", "sm_121a", "compute_120f", "compute_121a", "compute_90")  # all but 120a
GB10, H100, AMPERE = Capability(12, 1), Capability(9, 0), Capability(8, 0)


@pytest.mark.parametrize(
    ("file", "device", "kept", "emptied"),
    [
        ("many.so", GB10, {"sm_120": 1, "compute_80": 1}, 1),
        ("many.so", H100, {"sm_90a": 2, "compute_80": 1}, 0),
        ("many.so", AMPERE, {"sm_80": 1, "compute_80": 1}, 1),
        (
            "suffixes.so",
            GB10,
            dict.fromkeys(SUFFIXES, 1),
            0,
        ),
        ("suffixes.so", H100, {"compute_90": 1}, 0),
        ("suffixes.so", AMPERE, {}, 1),
        ("speed.so", GB10, {"compute_80": 1}, 0),
    ],
)
def test_keeps_what_the_device_uses(
    data: Path, opened: Open, file: str, device: Capability, kept: dict[str, int], emptied: int
) -> None:
    source = opened(data / file)
    before = read_shared_object(source)
    plan = plan_blanking(before.containers, device)
    assert (plan.kept, plan.emptied) == (kept, emptied)
    result = EditedSource(source, plan.edits)
    after = read_shared_object(result)
    check_blanked(before.containers, source, after.containers, result, device)
    old, new = (kernel_support(one, read_shared_object(one).containers, device) for one in (source, result))
    assert lost_kernels(old, new) == []
    assert {key for key, support in old.items() if support.loadable} == set(new)
    report, _ = inspect_extension(result, device)
    assert (report.images, report.unusable) == (dict(sorted(kept.items())), {})


@pytest.mark.parametrize("file", ["many.so", "suffixes.so", "speed.so"])
def test_touches_containers_only(data: Path, opened: Open, file: str) -> None:
    source = opened(data / file)
    found = read_shared_object(source).containers
    plan = plan_blanking(found, GB10)
    before, after = b"".join(chunks(source)), b"".join(chunks(EditedSource(source, plan.edits)))
    assert len(before) == len(after)
    inside = {at for one in found for at in range(one.offset, one.offset + one.size)}
    assert all(a == b for at, (a, b) in enumerate(zip(before, after, strict=True)) if at not in inside)
    assert after.count(0) - before.count(0) > sum(plan.dropped.values()) * 64


def test_nothing_to_do_for_a_device_that_uses_all(data: Path, opened: Open) -> None:
    source = opened(data / "speed.so")
    plan = plan_blanking(read_shared_object(source).containers, AMPERE)
    assert (plan.edits, plan.dropped, plan.bytes_zeroed) == ((), {}, 0)


def test_twice_is_once(data: Path, opened: Open) -> None:
    source = opened(data / "many.so")
    once = EditedSource(source, plan_blanking(read_shared_object(source).containers, GB10).edits)
    assert plan_blanking(read_shared_object(once).containers, GB10).edits == ()


def test_the_check_finds_a_changed_image(data: Path, opened: Open) -> None:
    source = opened(data / "many.so")
    before = read_shared_object(source)
    live = next(one for one in before.containers[0].entries if one.label == "sm_120")
    result = EditedSource(source, [Edit(live.payload_offset + 20, 4, (b"oops",))])
    with pytest.raises(ArtefactError, match=r"fat binary 0 lost or changed an image that 12\.1 uses"):
        check_blanked(before.containers, source, before.containers, result, GB10)


def test_the_check_finds_a_lost_container(data: Path, opened: Open) -> None:
    source = opened(data / "many.so")
    before = read_shared_object(source).containers
    with pytest.raises(ArtefactError, match="moved"):
        check_blanked(before, source, before[:1], source, GB10)


@st.composite
def section(draw: st.DrawFn) -> bytes:
    """A `.nv_fatbin` of a few containers with images of every kind and suffix."""
    content = b""
    for _ in range(draw(st.integers(1, 4))):
        body = b""
        for _ in range(draw(st.integers(0, 5))):
            kind, number = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([75, 80, 87, 90, 100, 120, 121]))
            flags = 0x11 | draw(st.sampled_from([0, 0x100000, 0x200000]))
            payload = draw(st.binary(min_size=1, max_size=40))
            payload += bytes(-len(payload) % 8)
            fields = (kind, 0x101, 64, len(payload), 0, 0, 8, 1, number, 0, 0, flags, 0, 0)
            body += struct.pack("<HHIQIIHHIIIQQQ", *fields) + payload
        content += container_header(1, len(body)) + body + bytes(8 * draw(st.integers(0, 3)))
    return content


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=section(), device=st.sampled_from([GB10, H100, AMPERE, Capability(8, 7)]))
def test_any_section(from_bytes: Callable[[bytes], FileSource], content: bytes, device: Capability) -> None:
    source = from_bytes(content)
    before = tuple(containers(source, 0, source.size))
    result = EditedSource(source, plan_blanking(before, device).edits)
    after = tuple(containers(result, 0, result.size))
    check_blanked(before, source, after, result, device)
    for old, new in zip(before, after, strict=True):
        stay = [one for one in old.entries if one.target.runs_on(device, one.form) is not Support.ABSENT]
        assert [result.read(one.offset, one.size) for one in new.entries] == [
            content[one.offset : one.offset + one.size] for one in stay
        ]
        assert new.room == old.room
        assert not result.read(new.offset + new.size, new.room - new.size).strip(b"\0")


def test_lost_kernels_are_named() -> None:
    before = {(0, "a"): Support.NATIVE, (0, "b"): Support.JIT, (1, "a"): Support.ABSENT, (2, "c"): Support.NATIVE}
    after = {(0, "a"): Support.JIT, (2, "c"): Support.NATIVE}
    assert lost_kernels(before, after) == [
        "a (fat binary 0): native, now JIT only",
        "b (fat binary 0): JIT only, now absent",
    ]
