"""Trailers: what is complete passes; each thing missing, malformed or misplaced is named."""

import re

import pytest

from tests.fakes.upstream_repo import CLEAN, message
from vllm_spark import proc
from vllm_spark.distro.series import trailers

GOOD = message("kernel/e2m1", Spark_Needs=("build/a", "build/b"))


def test_complete_message() -> None:
    assert trailers.problems(GOOD) == []
    meta = trailers.meta(GOOD)
    assert (meta.name, meta.kind, meta.cls) == ("kernel/e2m1", "fix", "python")
    assert meta.needs == ("build/a", "build/b")
    assert meta.drop_when == ("never",)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Spark-Upstream", "proposed https://github.com/vllm-project/vllm/pull/1"),
        ("Spark-Upstream", "merged https://github.com/vllm-project/vllm/pull/1 in v0.34.0"),
        ("Spark-Upstream", "declined https://github.com/vllm-project/vllm/pull/1: too large"),
        ("Spark-Origin", "https://github.com/a/b@0123abcd, adapted"),
        ("Spark-Drop-When", "pr:12 | commit:0123abcd | version>=0.36.0 | symbol:vllm.a.b"),
        ("Spark-Guard", "tests/guards/test_a.py::TestA::test_b"),
    ],
)
def test_every_form_is_taken(key: str, value: str) -> None:
    text = re.sub(rf"^{key}: .*$", f"{key}: {value}", message("a/b"), flags=re.MULTILINE)
    assert trailers.problems(text) == []
    assert trailers.Trailer(key, value) in trailers.read(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no trailers"),
        ("why\n", "no trailers"),
        (message("a/b", drop=("Spark-Kind",)), "missing trailer Spark-Kind"),
        (message("a/b", drop=("Signed-off-by",)), "missing trailer Signed-off-by"),
        (message("a/b", drop=("Spark-Guard",)), "missing trailer Spark-Guard"),
        (message("a/b", Spark_Kind="better"), "malformed trailer Spark-Kind"),
        (message("a/b", Spark_Class="c++"), "malformed trailer Spark-Class"),
        (message("a/b", Spark_Upstream="proposed"), "malformed trailer Spark-Upstream"),
        (message("a/b", Spark_Upstream="local:"), "malformed trailer"),
        (message("a/b", Spark_Origin="somebody"), "malformed trailer Spark-Origin"),
        (message("a/b", Spark_Drop_When="some day"), "malformed trailer Spark-Drop-When"),
        (message("a/b", Spark_Drop_When="pr:1|pr:2"), "malformed trailer Spark-Drop-When"),
        (message("a/b", Spark_Guard="tests/guards/test_a.py"), "malformed trailer Spark-Guard"),
        (message("a/b", Spark_Guard="tests/guards/test_a.py::test_b[120]"), "malformed trailer Spark-Guard"),
        (message("A B"), "malformed trailer Spark-Patch"),
        (message("../x"), "malformed trailer Spark-Patch"),
        (message("a/b", Spark_Kind=("fix", "perf")), "Spark-Kind stands 2 times"),
        (message("a/b", Spark_Needs=("c/d", "c/d")), "Spark-Needs repeats a value"),
        (message("a/b", Spark_Colour="red"), "unknown trailer Spark-Colour"),
        (message("a/b").replace("Spark-Kind", "spark-kind"), "malformed trailer spark-kind: write Spark-Kind"),
        (message("a/b").replace("Spark-Kind: fix", "Spark-Kind fix"), "missing trailer Spark-Kind|malformed"),
        (message("a/b").replace("Spark-Kind: fix", "Spark Kind = fix"), "malformed trailer line 'Spark Kind = fix'"),
        (message("a/b").replace("Spark-Kind: fix", "Spark-Kind: fix\n"), "outside the last paragraph"),
        (message("a/b") + "\nAn afterthought.\n", "outside the last paragraph"),
    ],
)
def test_problem_is_named(text: str, problem: str) -> None:
    found = " ".join(trailers.problems(text))
    assert any(part in found for part in problem.split("|")), found


@pytest.mark.parametrize("text", [GOOD, message("a/b", Spark_Guard=("t/a.py::b", "t/a.py::c"))])
def test_git_reads_the_same_trailers(text: str) -> None:
    said = proc.run(["git", "interpret-trailers", "--parse"], env=CLEAN, stdin=text.encode()).text
    assert [f"{trailer.key}: {trailer.value}" for trailer in trailers.read(text)] == said.splitlines()
