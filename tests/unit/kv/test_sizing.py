"""The arithmetic, and the properties that a host's life hangs on."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.kv import sizing, table
from vllm_spark.runtime.kv.memory import GIB, MIB
from vllm_spark.runtime.kv.settings import Settings

COST = sizing.Cost(sequence=4 * GIB, block=2 * MIB, max_model_len=32768, max_num_seqs=8)
MEASURED = sizing.Measured(
    total=round(121.69 * GIB),
    at_start=115 * GIB,
    now=40 * GIB,
    own=70 * GIB,
    phase_one_kv=GIB,
    weights=60 * GIB,
    graphs=2 * GIB,
    peak=3 * GIB,
)
SIZES = st.integers(0, 1 << 38)
MACHINES = st.builds(
    sizing.Measured, total=SIZES, at_start=SIZES, now=SIZES, own=SIZES, phase_one_kv=SIZES, weights=SIZES,
    graphs=SIZES, peak=SIZES,
)  # fmt: skip
COSTS = st.builds(
    sizing.Cost,
    sequence=st.integers(1, 1 << 36),
    block=st.integers(1, 1 << 26),
    max_model_len=st.integers(1, 1 << 20),
    max_num_seqs=st.integers(1, 1 << 10),
)
SETTINGS = st.builds(Settings, target=st.sampled_from(["max", "need"]), reserve=st.integers(0, 1 << 36))


def planned(measured: sizing.Measured, settings: Settings, cost: sizing.Cost) -> int:
    try:
        return sizing.plan(measured, settings, cost).kv
    except ConfigError:
        return 0


def gib(value: float) -> int:
    return round(value * GIB)


def test_all_but_the_reserve() -> None:
    found = sizing.plan(MEASURED, Settings("max", 6 * GIB), COST)
    assert found.kv == (40 + 1 - 3 - 6) * GIB
    assert found.left == 6 * GIB


def test_what_is_needed_leaves_the_rest_to_the_host() -> None:
    cost = dataclasses.replace(COST, max_num_seqs=2)
    found = sizing.plan(MEASURED, Settings("need", 6 * GIB), cost)
    assert found.kv == cost.need == pytest.approx(8.8 * GIB + 2 * MIB, abs=1)
    assert found.left == 41 * GIB - 3 * GIB - found.kv


@given(MACHINES, SETTINGS, COSTS)
def test_kv_and_everything_else_never_exceed_what_is_available(
    measured: sizing.Measured, settings: Settings, cost: sizing.Cost
) -> None:
    kv = planned(measured, settings, cost)
    assert kv >= 0
    if kv:
        assert kv + measured.peak + settings.reserve <= measured.now + measured.phase_one_kv
        assert kv + measured.peak + settings.reserve + measured.own - measured.phase_one_kv <= measured.at_start


@given(MACHINES, SETTINGS, COSTS, st.integers(0, 1 << 36))
def test_more_memory_never_gives_fewer_tokens(
    measured: sizing.Measured, settings: Settings, cost: sizing.Cost, more: int
) -> None:
    richer = dataclasses.replace(
        measured, total=measured.total + more, at_start=measured.at_start + more, now=measured.now + more
    )
    assert cost.tokens(planned(richer, settings, cost)) >= cost.tokens(planned(measured, settings, cost))


@given(MACHINES, SETTINGS, COSTS, st.integers(0, 1 << 36))
def test_memory_that_neighbours_give_back_meanwhile_is_no_bonus(
    measured: sizing.Measured, settings: Settings, cost: sizing.Cost, freed: int
) -> None:
    settled = dataclasses.replace(measured, now=max(0, measured.at_start - measured.own))
    grown = dataclasses.replace(settled, now=settled.now + freed)
    assert planned(grown, settings, cost) == planned(settled, settings, cost)


def test_growth_in_profiling_of_a_real_report() -> None:
    # 82.94 GiB free before, 90.17 after: nothing aborts, and the 7.23 are not ours.
    quiet = dataclasses.replace(MEASURED, at_start=gib(82.94), own=gib(20), now=gib(62.94), phase_one_kv=0)
    grown = dataclasses.replace(quiet, now=gib(90.17))
    settings = Settings("max", 6 * GIB)
    assert sizing.plan(grown, settings, COST).kv == sizing.plan(quiet, settings, COST).kv


def test_cold_and_warm_starts_agree() -> None:
    # Unified memory, imitated: the cold start's compilers and page cache are gone when phase one is read, and its
    # allocator's peak belongs to the pass before; only noise of some MiB stays.
    cold = dataclasses.replace(MEASURED, at_start=gib(115), now=gib(40) - 60 * MIB)
    warm = dataclasses.replace(MEASURED, at_start=gib(114.2), now=gib(40))
    sizes = [sizing.plan(one, Settings("max", 6 * GIB), COST).kv for one in (cold, warm)]
    assert abs(sizes[0] - sizes[1]) <= 0.01 * max(sizes)


def test_upstream_arithmetic_of_a_real_report() -> None:
    kv = sizing.stock_kv_bytes(gib(121.69), 0.87, gib(86.93), gib(3.60), gib(0.26))
    assert kv / GIB == pytest.approx(15.08, abs=0.005)


def test_nothing_left_says_what_takes_it() -> None:
    with pytest.raises(ConfigError, match=r"no memory is left .* 115\.00 GiB .* 74\.00 GiB .* 3\.00 GiB .* 50\.00 GiB"):
        sizing.plan(MEASURED, Settings("max", 50 * GIB), COST)


def test_others_of_this_server_are_counted() -> None:
    assert sizing.plan(MEASURED, Settings("max", 6 * GIB), COST, taken=2 * GIB).kv == 30 * GIB


@pytest.mark.parametrize(("size", "fits"), [(4 * GIB, False), (4 * GIB + 2 * MIB, True), (GIB, False)])
def test_one_sequence_must_fit(size: int, *, fits: bool) -> None:
    plan = dataclasses.replace(sizing.plan(MEASURED, Settings("max", 6 * GIB), COST), kv=size)
    if fits:
        sizing.check_sequence(plan, COST, 0)
    else:
        with pytest.raises(ConfigError, match=r"--max-model-len 32768.*--max-model-len 8000"):
            sizing.check_sequence(plan, COST, 8000)


def test_no_length_fits_at_all() -> None:
    plan = dataclasses.replace(sizing.plan(MEASURED, Settings("max", 6 * GIB), COST), kv=1)
    with pytest.raises(ConfigError, match="a smaller model"):
        sizing.check_sequence(plan, COST, 0)


@given(MACHINES, SETTINGS, COSTS)
def test_the_table_adds_up(measured: sizing.Measured, settings: Settings, cost: sizing.Cost) -> None:
    if planned(measured, settings, cost):
        total, *parts = table.rows(sizing.plan(measured, settings, cost))
        assert total[1] == sum(size for _, size in parts)


def test_the_table_shows_stock_beside_ours() -> None:
    plan = sizing.plan(MEASURED, Settings("max", 6 * GIB), COST)
    text = table.render(plan, COST, limit="MemAvailable")
    assert "KV cache                         32.00 GiB" in text
    assert "262144 tokens, 8.00 sequences of 32768 tokens" in text
    assert "0.92 would have given 34.95 GiB" in text


def test_the_table_shows_where_stock_refuses() -> None:
    plan = sizing.plan(dataclasses.replace(MEASURED, at_start=100 * GIB, own=GIB), Settings("max", 6 * GIB), COST)
    assert "0.92 would have refused to start" in table.render(plan, COST, limit="g")
