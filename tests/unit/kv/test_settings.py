import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.kv import settings
from vllm_spark.runtime.kv.memory import GIB, MIB
from vllm_spark.runtime.kv.settings import RESERVE, TARGET

TOTAL = round(121.69 * GIB)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6", 6 * GIB),
        ("6GiB", 6 * GIB),
        (" 6 gib ", 6 * GIB),
        ("6g", 6 * GIB),
        ("512MiB", 512 * MIB),
        (".5", GIB // 2),
        ("0", 0),
        ("1048576b", MIB),
        ("50%", -(-TOTAL // 2)),
    ],
)
def test_reserve(text: str, expected: int) -> None:
    assert settings.parse({RESERVE: text}, TOTAL, unified=True).reserve == expected


@pytest.mark.parametrize(
    "text", ["", "-1", "-1GiB", "nan", "inf", "1e3", "six", "6TB", "6 GiB please", "100%", "1000%", "122", "0x10", "--"]
)
def test_bad_reserve_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=RESERVE):
        settings.parse({RESERVE: text}, TOTAL, unified=True)


@pytest.mark.parametrize(
    ("total", "unified", "expected"),
    [(TOTAL, True, -(-TOTAL * 5 // 100)), (24 * GIB, True, 4 * GIB), (80 * GIB, False, 256 * MIB)],
)
def test_default_reserve(total: int, *, unified: bool, expected: int) -> None:
    assert abs(settings.default_reserve(total, unified=unified) - expected) <= 1


def test_a_machine_smaller_than_its_reserve() -> None:
    with pytest.raises(ConfigError, match="default reserve"):
        settings.parse({}, 3 * GIB, unified=True)


@pytest.mark.parametrize("target", ["max", "need"])
def test_targets(target: str) -> None:
    assert settings.parse({TARGET: target}, TOTAL, unified=True).target == target


@pytest.mark.parametrize("target", ["", "MAX", "half", "max "])
def test_unknown_target(target: str) -> None:
    with pytest.raises(ConfigError, match=TARGET):
        settings.parse({TARGET: target}, TOTAL, unified=True)


@given(st.text(max_size=12))
def test_any_text_gives_a_reserve_within_the_memory_or_a_refusal(text: str) -> None:
    try:
        found = settings.parse({RESERVE: text}, TOTAL, unified=True)
    except ConfigError:
        return
    assert 0 <= found.reserve < TOTAL


@pytest.mark.parametrize(("available", "cpus", "expected"), [(121, 20, 13), (40, 20, 3), (23, 20, 1), (10, 20, 1)])
def test_compiler_jobs(available: int, cpus: int, expected: int) -> None:
    assert settings.jit_jobs(available * GIB, cpus) == expected


def test_compiler_jobs_never_exceed_the_processors() -> None:
    assert settings.jit_jobs(1000 * GIB, 4) == 4
