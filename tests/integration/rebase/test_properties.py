"""What must hold for any series."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.upstream_repo import lines, message
from tests.integration.rebase.conftest import BASE, MODEL, Bed
from vllm_spark.distro.series import export

EDITS = st.lists(
    st.dictionaries(
        st.sampled_from(range(1, 61)), st.text("abc é\t\\", min_size=1, max_size=8), min_size=1, max_size=4
    ),
    min_size=1,
    max_size=4,
)


def fill(bed: Bed, edits: list[dict[int, str]]) -> None:
    """One patch per entry, each on top of the last."""
    text = {number: f"line {number}" for number in range(1, 61)}
    for number, changes in enumerate(edits):
        text |= {line: f"{word}{number}" for line, word in changes.items()}
        bed.patch(message(f"model/p{number}"), {MODEL: "".join(f"{text[n]}\n" for n in range(1, 61)).encode()})


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(edits=EDITS)
def test_same_release_changes_nothing(edits: list[dict[int, str]]) -> None:
    """Series → verdicts → export is the identity."""
    with tempfile.TemporaryDirectory() as folder:
        bed = Bed(Path(folder))
        fill(bed, edits)
        ladder = bed.ladder(to="0.33.0")
        results = ladder.climb()
        assert {result.verdict for result in results} == {"clean"}
        written = {f"{result.patch}.patch": export.render(ladder.bench, result.commit) for result in results}
        assert written == bed.patches


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(edits=EDITS)
def test_a_series_that_landed_whole_leaves_nothing(edits: list[dict[int, str]]) -> None:
    """Upstream took all of it in one commit: nothing is carried, nothing conflicts."""
    with tempfile.TemporaryDirectory() as folder:
        bed = Bed(Path(folder))
        fill(bed, edits)
        text = {number: f"line {number}" for number in range(1, 61)}
        for number, changes in enumerate(edits):
            text |= {line: f"{word}{number}" for line, word in changes.items()}
        bed.next({MODEL: "".join(f"{text[n]}\n" for n in range(1, 61)).encode()})
        assert {result.verdict for result in bed.verdicts()} == {"landed"}


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(edits=EDITS)
def test_a_release_without_any_of_it_is_never_called_landed(edits: list[dict[int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bed = Bed(Path(folder))
        fill(bed, edits)
        bed.next({MODEL: b"".join(b"quite other %d\n" % n for n in range(60)), "vllm/loader.py": BASE[MODEL]})
        assert not {result.verdict for result in bed.verdicts()} & {"landed", "clean", "offset", "merged"}


@pytest.mark.slow
def test_two_hundred_patches(bed: Bed) -> None:
    """Each has a file and a neighbour of its own; every fifth file moved lines, every seventh landed."""
    files = {f"vllm/m{n}.py": lines(n * 100, n * 100 + 30) for n in range(200)}
    bed.upstream.release("0.33.0", {**BASE, **files})
    ours = [lines(n * 100, n * 100 + 30, **{f"l{n * 100 + 15}": "ours"}) for n in range(200)]
    made = bed.upstream.many([(message(f"model/p{n}"), {f"vllm/m{n}.py": ours[n]}) for n in range(200)])
    bed.patches = {f"model/p{n}.patch": data for n, data in enumerate(made)}
    new = dict(files)
    for n, name in enumerate(files):
        changed = lines(n * 100, n * 100 + 30, **({f"l{n * 100 + 15}": "ours"} if n % 7 == 0 else {}))
        new[name] = (b"moved\n" if n % 5 == 0 else b"") + changed
    bed.upstream.release("0.34.0", {**BASE, **new})
    verdicts = [result.verdict for result in bed.verdicts()]
    assert verdicts == ["landed" if n % 7 == 0 else "offset" if n % 5 == 0 else "clean" for n in range(200)]
