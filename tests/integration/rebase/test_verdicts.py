"""Every verdict on real git repositories, each with the next release that calls for it."""

import pytest

from tests.fakes.upstream_repo import lines, message
from tests.integration.rebase.conftest import BASE, MODEL, TEST, Bed
from vllm_spark.distro.rebase.state import Decision
from vllm_spark.distro.series import patch as patches

A = message("model/a")
SEVEN = lines(1, 60, l7="seven")
HELPER = "".join(f"def helper_{n}(argument): return argument + {n}\n" for n in range(3)).encode()


def content(bed: Bed, name: str) -> bytes:
    """A file of the new release with everything that is carried."""
    ladder = bed.ladder()
    ladder.climb()
    return ladder.bench.blob(ladder.tip, name) or b""


def test_clean(bed: Bed) -> None:
    bed.patch(A, {MODEL: SEVEN})
    bed.next({"vllm/loader.py": b"other\n", MODEL: lines(1, 60, l40="forty")})
    result = bed.one()
    assert (result.verdict, result.files, result.stuck) == ("clean", (MODEL,), False)
    assert content(bed, MODEL) == lines(1, 60, l7="seven", l40="forty")


def test_offset(bed: Bed) -> None:
    bed.patch(A, {MODEL: SEVEN})
    bed.next({MODEL: b"new\nlines\n" + lines(1, 60)})
    assert bed.one().verdict == "offset"
    assert content(bed, MODEL) == b"new\nlines\n" + SEVEN


def test_merged(bed: Bed) -> None:
    """A context line changed: nothing without fuzz, but three ways git knows."""
    bed.patch(A, {MODEL: SEVEN})
    bed.next({MODEL: lines(1, 60, l5="five")})
    assert bed.one().verdict == "merged"
    assert content(bed, MODEL) == lines(1, 60, l5="five", l7="seven")


@pytest.mark.parametrize("edited", [False, True])
def test_moved(bed: Bed, edited: bool) -> None:
    """The file was renamed, and in the second case changed as well, even around our hunk."""
    bed.patch(A, {MODEL: SEVEN})
    bed.next({MODEL: None, "vllm/models/model.py": lines(1, 60, **({"l5": "five"} if edited else {}))})
    result = bed.one()
    assert result.verdict == "moved"
    assert result.moved == {MODEL: "vllm/models/model.py"}
    assert content(bed, "vllm/models/model.py") == lines(1, 60, l7="seven", **({"l5": "five"} if edited else {}))


def test_a_new_file_follows_its_folder(bed: Bed) -> None:
    bed.patch(A, {"csrc/old/ours.cuh": lines(1, 30), "csrc/old/kernel.cuh": lines(301, 380, l310="x")})
    bed.next({"csrc/old/kernel.cuh": None, "csrc/kernel.cuh": lines(301, 380)})
    result = bed.one()
    assert result.verdict == "moved"
    assert result.files == ("csrc/kernel.cuh", "csrc/ours.cuh")


def test_two_files_swapped_places(bed: Bed) -> None:
    """Both names exist still, and their contents changed places: the patch must not follow a name blindly."""
    bed.patch(A, {MODEL: SEVEN})
    bed.next({MODEL: BASE["vllm/loader.py"], "vllm/loader.py": BASE[MODEL]})
    result = bed.one()
    assert result.verdict == "conflict"


LANDED = {
    "identical": SEVEN,
    "drifted": b"first\n" + lines(1, 60, l3="three", l7="seven", l12="twelve"),
}


@pytest.mark.parametrize("how", LANDED)
def test_landed(bed: Bed, how: str) -> None:
    bed.patch(A, {MODEL: SEVEN})
    bed.next({MODEL: LANDED[how]})
    result = bed.one()
    assert (result.verdict, result.commit, result.landed) == ("landed", "", (MODEL,))
    assert "three-way result is empty" in result.dropped


def test_landed_and_renamed(bed: Bed) -> None:
    bed.patch(A, {MODEL: SEVEN})
    bed.next({MODEL: None, "vllm/models/model.py": lines(1, 60, l7="seven", l30="thirty")})
    assert bed.one().verdict == "landed"


def test_two_patches_landed_in_one_commit(bed: Bed) -> None:
    """The second changes the first's line again, so that upstream never had the first's own text."""
    bed.patch(A, {MODEL: SEVEN})
    bed.patch(message("model/b"), {MODEL: lines(1, 60, l7="sieben", l8="acht")})
    bed.next({MODEL: lines(1, 60, l7="sieben", l8="acht")})
    first, second = bed.verdicts()
    assert (first.verdict, second.verdict) == ("landed", "landed")
    assert "in reverse" in first.why


def test_landed_without_its_tests(bed: Bed) -> None:
    bed.patch(A, {MODEL: SEVEN, TEST: lines(401, 440, l410="test")})
    bed.next({MODEL: SEVEN})
    result = bed.one()
    assert (result.verdict, result.left_out) == ("landed", (TEST,))


def test_landed_in_part(bed: Bed) -> None:
    bed.patch(A, {MODEL: SEVEN, "vllm/loader.py": lines(101, 160, l110="ten")})
    bed.next({MODEL: SEVEN})
    result = bed.one()
    assert (result.verdict, result.landed, result.files) == ("merged", (MODEL,), ("vllm/loader.py",))
    assert f"upstream has its change to {MODEL} already" in result.why


NOT_LANDED = {
    "edited again after it landed": (lines(1, 60, l7="seven and more"), "conflict"),
    "reverted after it landed": (lines(1, 60, l3="three"), "clean"),
    "only half of it": (lines(1, 60, l7="seven"), "merged"),
    "only its end": (lines(1, 60, l40="forty"), "merged"),
}


@pytest.mark.parametrize("how", NOT_LANDED)
def test_not_landed(bed: Bed, how: str) -> None:
    text, verdict = NOT_LANDED[how]
    bed.patch(A, {MODEL: lines(1, 60, l7="seven", l40="forty")})
    bed.next({MODEL: text})
    assert bed.one().verdict == verdict


def test_sibling_with_the_same_text_is_not_landed(bed: Bed) -> None:
    """Upstream rewrote our function and fixed its twin: taking the patch out in reverse works, at the twin."""
    twin = lines(1, 10)
    bed.upstream.release("0.33.0", {MODEL: twin + lines(11, 30)})
    bed.patch(A, {MODEL: lines(1, 10, l5="fixed") + lines(11, 30)})
    rewritten = b"".join(b"other %d\n" % n for n in range(10))
    bed.upstream.release("0.34.0", {MODEL: rewritten + lines(11, 30) + lines(1, 10, l5="fixed")})
    ladder = bed.ladder()
    (result,) = ladder.climb()
    patch = patches.parse("model/a.patch", bed.patches["model/a.patch"])
    assert ladder.bench.reversed(patch, ladder.bench.tree_of(ladder.new.commit), {}) is not None  # the trap is real
    assert result.verdict in ("conflict", "variant")
    assert result.stuck


def test_a_deleted_block_that_is_still_there_is_not_landed(bed: Bed) -> None:
    """Upstream moved and doubled the block. The merge is empty, and ours goes in and out in reverse: no proof."""
    block = b"struct only {\n  check == 1200\n  trap\n};\n"
    newer = block.replace(b"trap", b"trap a")
    bed.upstream.release("0.33.0", {MODEL: lines(1, 20) + block + lines(21, 40)})
    bed.patch(A, {MODEL: lines(1, 20) + lines(21, 40)})
    text = b"struct only {\n  check == 1200\n  trap a\n};\n" + lines(18, 20) + lines(21, 40)
    bed.upstream.release("0.34.0", {MODEL: lines(1, 17) + newer + text})
    result = bed.one()
    assert (result.verdict, result.stuck) == ("variant", True)
    assert result.why == f"nothing of it is left to apply, but {MODEL} has a line that it takes away"


def test_a_deleted_block_that_is_gone_has_landed(bed: Bed) -> None:
    """The neighbour changed as well, so that three ways alone do not know."""
    block, neighbour = b"struct only {\n  check == 1200\n};\n", b"struct other {\n  check == 1000\n};\n"
    end = b"}\n#endif\n\n"
    bed.upstream.release("0.33.0", {MODEL: lines(1, 20) + neighbour + end + block + lines(21, 40)})
    bed.patch(A, {MODEL: lines(1, 20) + neighbour + end + lines(21, 40)})
    bed.upstream.release("0.34.0", {MODEL: lines(1, 20) + b"renamed\n" + end + lines(21, 40)})
    assert bed.one().verdict == "landed"


def test_variant_by_version(bed: Bed) -> None:
    bed.patch(message("model/a", Spark_Drop_When="version>=0.34.0"), {MODEL: SEVEN})
    bed.next({MODEL: lines(1, 60, l7="7")})
    result = bed.one()
    assert (result.verdict, result.candidates) == ("variant", ("version>=0.34.0 is reached",))
    assert result.clashes[0].ours.startswith("@@ -4,7 +4,7 @@")
    assert "     7 | 7" in result.clashes[0].upstream


def test_variant_by_symbol(bed: Bed) -> None:
    bed.patch(message("model/a", Spark_Drop_When="symbol:vllm.extra.Helper.run"), {MODEL: SEVEN})
    bed.next({"vllm/extra.py": b"class Helper:\n    def run(self) -> None: ...\n"})
    result = bed.one()
    assert (result.verdict, result.candidates) == ("variant", ("vllm.extra.Helper.run exists now",))
    assert result.stuck


def test_variant_that_would_double_upstreams_text(bed: Bed) -> None:
    """Landed at another place: git would take it a second time without a word."""
    bed.patch(A, {MODEL: lines(1, 20) + HELPER + lines(21, 60)})
    bed.next({MODEL: lines(1, 50) + HELPER + lines(51, 60)})
    result = bed.one()
    assert result.verdict == "variant"
    assert "line 51 has this text already" in result.why


def test_conflict(bed: Bed) -> None:
    bed.patch(A, {MODEL: lines(1, 60, l7="seven", l40="forty")})
    bed.next({MODEL: lines(1, 60, l7="7")})
    result = bed.one()
    assert (result.verdict, result.stuck) == ("conflict", True)
    (clash,) = result.clashes  # the hunk at line 40 fits and is not shown
    assert (clash.file, clash.why) == (MODEL, "both changed these lines (line 7)")
    assert "-line 7\n+seven\n" in clash.ours
    assert "forty" not in clash.ours
    assert clash.upstream[3] == "     7 | 7"


def test_conflict_in_a_deleted_file_names_its_successor(bed: Bed) -> None:
    bed.patch(A, {MODEL: SEVEN})
    rest = lines(1, 20) + b"".join(b"quite other text %d\n" % n for n in range(8))
    bed.next({MODEL: None, "vllm/successor.py": rest})
    result = bed.one()
    assert result.verdict == "conflict"
    assert result.clashes[0].why == "upstream has no such file any more"
    assert result.clashes[0].successor.startswith("vllm/successor.py (")


def test_broken_does_not_hide_others(bed: Bed) -> None:
    bed.patch(A, {MODEL: SEVEN})
    bed.patch(message("model/b", Spark_Needs="model/a"), {MODEL: lines(1, 60, l7="seven", l30="thirty")})
    bed.patch(message("model/c"), {"vllm/loader.py": lines(101, 160, l110="ten")})
    bed.patch(message("model/d"), {"vllm/layers/linear.py": lines(201, 240, l210="ten")})
    bed.patches["model/a.patch"] = bed.patches["model/a.patch"].replace(b"@@ -4,7", b"@@ -4,x")
    bed.patches["model/c.patch"] = bed.patches["model/c.patch"].replace(b"Spark-Kind: fix\n", b"")
    bed.next({})
    results = bed.verdicts()
    assert [result.verdict for result in results] == ["broken", "waiting", "broken", "clean"]
    assert "malformed hunk header" in results[0].why
    assert results[2].why == "missing trailer Spark-Kind"


def test_made_for_another_release_is_broken(bed: Bed) -> None:
    bed.patch(A, {MODEL: SEVEN})
    bed.patches["model/a.patch"] = bed.patches["model/a.patch"].replace(b" line 8\n", b" line eight\n")
    bed.next({})
    result = bed.one()
    assert result.verdict == "broken"
    assert result.why.startswith("does not apply to 0.33.0, for which it is made: vllm/model.py: hunk 1")


def test_conflict_hides_nothing_independent(bed: Bed) -> None:
    """Nested needs wait with their root; what needs nothing goes on."""
    bed.patch(A, {MODEL: SEVEN})
    bed.patch(message("model/b", Spark_Needs="model/a"), {MODEL: lines(1, 60, l7="seven", l30="thirty")})
    bed.patch(message("model/c", Spark_Needs="model/b"), {MODEL: lines(1, 60, l7="seven", l30="thirty", l50="fifty")})
    bed.patch(message("load/d"), {"vllm/loader.py": lines(101, 160, l110="ten")})
    bed.patch(message("model/e"), {MODEL: lines(1, 60, l7="seven", l30="thirty", l50="fifty", l58="last")})
    bed.next({MODEL: lines(1, 60, l7="7")})
    results = bed.verdicts()
    assert [result.verdict for result in results] == ["conflict", "waiting", "waiting", "clean", "clean"]
    assert [result.why for result in results[1:3]] == ["needs model/a", "needs model/b"]
    assert content(bed, MODEL) == lines(1, 60, l7="7", l58="last")


def test_need_that_landed_is_forgotten(bed: Bed) -> None:
    bed.patch(A, {MODEL: SEVEN})
    bed.patch(message("model/b", Spark_Needs="model/a"), {MODEL: lines(1, 60, l7="seven", l30="thirty")})
    bed.next({MODEL: SEVEN})
    ladder = bed.ladder()
    first, second = ladder.climb()
    assert (first.verdict, second.verdict) == ("landed", "clean")
    text = ladder.bench("cat-file", "commit", second.commit).text
    assert "Spark-Patch: model/b" in text
    assert "Spark-Needs" not in text


@pytest.mark.parametrize("gone", [False, True])
def test_tests_never_block_code(bed: Bed, gone: bool) -> None:
    bed.patch(A, {MODEL: SEVEN, TEST: lines(401, 440, l410="our test"), "tests/test_new.py": b"new\n"})
    bed.next({TEST: None if gone else lines(401, 440, l410="their test")})
    result = bed.one()
    assert (result.verdict, result.left_out, result.stuck) == ("clean", (TEST,), False)
    assert result.files == ("tests/test_new.py", MODEL)
    assert f"change to {TEST} does not fit and is left out" in result.why
    assert content(bed, TEST) == (b"" if gone else lines(401, 440, l410="their test"))


def test_tests_only_patch_that_clashes_is_a_conflict(bed: Bed) -> None:
    bed.patch(A, {TEST: lines(401, 440, l410="our test")})
    bed.next({TEST: lines(401, 440, l410="their test")})
    assert bed.one().verdict == "conflict"


ODD: dict[str, tuple[dict[str, bytes | None], tuple[str, ...], dict[str, bytes | None], str]] = {
    "crlf": (
        {"vllm/crlf.py": lines(501, 540, l510="x").replace(b"\n", b"\r\n")},
        (),
        {"vllm/crlf.py": lines(501, 540, l530="y").replace(b"\n", b"\r\n")},
        "clean",
    ),
    "crlf became lf": (
        {"vllm/crlf.py": lines(501, 540, l510="x").replace(b"\n", b"\r\n")},
        (),
        {"vllm/crlf.py": lines(501, 540)},
        "conflict",
    ),
    "non-utf8": (
        {"vllm/latin.py": b"# \xe9t\xe9 \xfc\n" + lines(601, 640)},
        (),
        {"vllm/latin.py": b"# \xe9t\xe9\n" + lines(601, 640, l630="z")},
        "clean",
    ),
    "non-utf8 conflict": (
        {"vllm/latin.py": b"# \xe9t\xe9 \xfc\n" + lines(601, 640)},
        (),
        {"vllm/latin.py": b"# \xe9t\xe9 \xe4\n" + lines(601, 640)},
        "conflict",
    ),
    "binary": ({"vllm/blob.bin": bytes(range(255, -1, -1)) * 4}, (), {}, "clean"),
    "binary landed": (
        {"vllm/blob.bin": bytes(range(255, -1, -1)) * 4},
        (),
        {"vllm/blob.bin": bytes(range(255, -1, -1)) * 4},
        "landed",
    ),
    "binary conflict": (
        {"vllm/blob.bin": bytes(range(255, -1, -1)) * 4},
        (),
        {"vllm/blob.bin": bytes(range(256)) * 5},
        "conflict",
    ),
    "mode": ({}, ("vllm/tool.sh",), {"vllm/tool.sh": b"#!/bin/sh\n" + lines(701, 720, l710="x")}, "clean"),
    "delete": ({"vllm/loader.py": None}, (), {}, "clean"),
    "delete landed": ({"vllm/loader.py": None}, (), {"vllm/loader.py": None}, "landed"),
    "delete conflict": ({"vllm/loader.py": None}, (), {"vllm/loader.py": lines(101, 160, l110="x")}, "conflict"),
    "create": ({"vllm/new.py": b"x = 1\n"}, (), {}, "clean"),
    "create conflict": ({"vllm/new.py": b"x = 1\n"}, (), {"vllm/new.py": b"x = 2\n"}, "conflict"),
    "rename": ({MODEL: None, "vllm/renamed.py": SEVEN}, (), {MODEL: lines(1, 60, l40="x")}, "clean"),
    "rename landed": ({MODEL: None, "vllm/renamed.py": SEVEN}, (), {MODEL: None, "vllm/renamed.py": SEVEN}, "landed"),
    "rename on both sides": (
        {MODEL: None, "vllm/renamed.py": SEVEN},
        (),
        {MODEL: None, "vllm/other.py": lines(1, 60)},
        "conflict",
    ),
    "space and marks": (
        {"vllm/a [b]*?.py": b"x\n", MODEL: SEVEN, "tests/test_[x].py": b"y\n"},
        (),
        {"tests/test_[x].py": b"z\n"},
        "clean",
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_files(bed: Bed, kind: str) -> None:
    edits, executable, changes, verdict = ODD[kind]
    bed.patch(A, edits, executable=executable)
    bed.next(changes)
    result = bed.one()
    assert result.verdict == verdict, result
    assert bool(result.clashes) == (verdict == "conflict")


def test_decision_to_drop(bed: Bed) -> None:
    bed.patch(A, {MODEL: SEVEN})
    bed.patch(message("model/b", Spark_Needs="model/a"), {"vllm/loader.py": lines(101, 160, l110="ten")})
    bed.next({MODEL: lines(1, 60, l7="7")})
    ladder = bed.ladder(decisions={"model/a": Decision("drop", "upstream's is better")})
    first, second = ladder.climb()
    assert (first.verdict, first.dropped, first.resolved) == ("conflict", "upstream's is better", True)
    assert second.verdict == "clean"


def test_decision_to_drop_what_fits(bed: Bed) -> None:
    bed.patch(A, {MODEL: SEVEN})
    bed.next({})
    ladder = bed.ladder(decisions={"model/a": Decision("obsolete", "its guard is green without it")})
    (result,) = ladder.climb()
    assert (result.verdict, result.commit) == ("obsolete", "")
    assert ladder.tip == ladder.new.commit
