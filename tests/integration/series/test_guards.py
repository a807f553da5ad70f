"""A guard holds when it is green with its patch and red without it, by assertion; everything else proves nothing."""

import pytest

from tests.fakes.upstream_repo import Upstream, lines, message
from tests.integration.series.conftest import Checkout
from vllm_spark.cli.main import main

MODEL = "vllm/model.py"
READ = """\
import os, pathlib, pytest
TEXT = (pathlib.Path(os.environ['VLLM_SPARK_TREE']) / 'vllm/model.py').read_text()
"""
GUARDS = {
    "holds": ("def test_model():\n    assert 'seven' in TEXT\n", "green", "red", 0),
    "one case of several": (
        "@pytest.mark.parametrize('word', ['seven', 'line 8'])\ndef test_model(word):\n    assert word in TEXT\n",
        "green",
        "red",
        0,
    ),
    "expected an exception": (
        "def test_model():\n    with pytest.raises(ValueError):\n        if 'seven' in TEXT: raise ValueError\n",
        "green",
        "red",
        0,
    ),
    "always green": ("def test_model():\n    assert 'line 8' in TEXT\n", "green", "green", 6),
    "always red": ("def test_model():\n    assert 'eleventy' in TEXT\n", "red", "red", 6),
    "breaks at collection": ("assert 'seven' in TEXT\ndef test_model():\n    assert True\n", "green", "error", 6),
    "breaks in a fixture": (
        "@pytest.fixture\ndef it():\n    assert 'seven' in TEXT\ndef test_model(it):\n    pass\n",
        "green",
        "error",
        6,
    ),
    "raises instead of asserting": ("def test_model():\n    TEXT.index('seven')\n", "green", "error", 6),
    "skips": ("def test_model():\n    if 'seven' not in TEXT: pytest.skip('no')\n", "green", "not run", 6),
    "is not there": ("def test_other():\n    assert 'seven' in TEXT\n", "not run", "not run", 6),
}


@pytest.mark.parametrize("kind", GUARDS)
def test_verdict(upstream: Upstream, checkout: Checkout, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    text, complete, without, code = GUARDS[kind]
    checkout.put({"model/a.patch": upstream.patch(message("model/a"), {MODEL: lines(1, 40, l7="seven")})})
    guard = checkout.root / "guards" / "guard_model.py"
    guard.parent.mkdir()
    guard.write_text(READ + text)
    assert main(["series", "guards"]) == code
    said = capsys.readouterr()
    (row,) = [line for line in said.out.splitlines() if line.startswith("model/a ")]
    shown = row.split("test_model")[1].split("  ")
    proof = "holds" if code == 0 else "FAILS"
    assert [cell.strip() for cell in shown if cell.strip()][:3] == [complete, without, proof]
    assert ("error: model/a: guards/guard_model.py::test_model is" in said.err) == (code == 6)


def test_what_needs_a_patch_goes_with_it(
    upstream: Upstream, checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    a = upstream.patch(
        message("model/a", Spark_Guard="guards/guard_model.py::test_a"), {MODEL: lines(1, 40, l7="seven")}
    )
    b = upstream.patch(
        message("model/b", Spark_Guard="guards/guard_model.py::test_b", Spark_Needs="model/a"),
        {MODEL: lines(1, 40, l7="seven", l8="eight")},
        after=(a,),
    )
    checkout.put({"model/a.patch": a, "model/b.patch": b})
    guard = checkout.root / "guards" / "guard_model.py"
    guard.parent.mkdir()
    guard.write_text(READ + "def test_a():\n    assert 'seven' in TEXT\ndef test_b():\n    assert 'eight' in TEXT\n")
    assert main(["series", "guards"]) == 0
    assert main(["series", "guards", "model/b"]) == 0
    assert "test_a " not in capsys.readouterr().out.split("1 guards")[1]
    assert main(["series", "guards", "model/z"]) == 2
