"""A guard holds when it is green with its patch and red without it, by assertion; everything else proves nothing."""

from pathlib import Path

import pytest

from tests.fakes.upstream_repo import Upstream, lines, message
from tests.integration.series.conftest import Checkout
from vllm_spark.cli.main import main
from vllm_spark.distro.series.guards import State, run_guards

MODEL = "vllm/model.py"
READ = """\
import os, pathlib, pytest
TEXT = (pathlib.Path(os.environ['VLLM_SPARK_TREE']) / 'vllm/model.py').read_text()
"""
# name -> its text, then its state in the tree with the word and in the tree without
GUARDS: dict[str, tuple[str, State, State]] = {
    "holds": ("def test_model():\n    assert 'seven' in TEXT\n", "green", "red"),
    "one_case_of_several": (
        "@pytest.mark.parametrize('word', ['seven', 'line 8'])\ndef test_model(word):\n    assert word in TEXT\n",
        "green",
        "red",
    ),
    "in_a_class": (
        "class TestIt:\n    def test_model(self):\n        assert 'seven' in TEXT, 'a reason'\n",
        "green",
        "red",
    ),
    "expects_an_exception": (
        "def test_model():\n    with pytest.raises(ValueError):\n        if 'seven' in TEXT: raise ValueError\n",
        "green",
        "red",
    ),
    "always_green": ("def test_model():\n    assert 'line 8' in TEXT\n", "green", "green"),
    "always_red": ("def test_model():\n    assert 'eleventy' in TEXT\n", "red", "red"),
    "breaks_at_collection": ("assert 'seven' in TEXT\ndef test_model():\n    assert True\n", "green", "error"),
    "breaks_in_a_fixture": (
        "@pytest.fixture\ndef it():\n    assert 'seven' in TEXT\ndef test_model(it):\n    pass\n",
        "green",
        "error",
    ),
    "raises_instead_of_asserting": ("def test_model():\n    TEXT.index('seven')\n", "green", "error"),
    "one_case_breaks": (
        "@pytest.mark.parametrize('word', ['seven', 'line 8'])\ndef test_model(word):\n    TEXT.index(word)\n",
        "green",
        "error",
    ),
    "skips": ("def test_model():\n    if 'seven' not in TEXT: pytest.skip('no')\n", "green", "not run"),
}


@pytest.mark.parametrize("word", ["seven", "line 7"])
def test_states(tmp_path: Path, word: str) -> None:
    """All of them at once, as they are run for the whole series: none hides another."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / MODEL).write_bytes(lines(1, 40, l7=word))
    ids: dict[str, str] = {}
    texts = {"guard_alone.py": READ, "guard_many.py": READ}
    for name, (text, _, _) in GUARDS.items():
        file = "guard_alone.py" if name == "breaks_at_collection" else "guard_many.py"
        texts[file] += text.replace("test_model", f"test_{name}")
        ids[name] = f"{file}::{'TestIt::' if name == 'in_a_class' else ''}test_{name}"
    for file, text in texts.items():
        (tmp_path / file).write_text(text)
    found = run_guards(tmp_path, ids.values(), tmp_path)
    expected = {name: states[0] if word == "seven" else states[1] for name, (_, *states) in GUARDS.items()}
    assert {name: found[guard][0] for name, guard in ids.items()} == expected
    assert all(message for state, message in found.values() if state != "green")


def test_guard_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "guard_a.py").write_text("def test_b():\n    assert True\n")
    ((state, message),) = run_guards(tmp_path, ["guard_a.py::test_a"], tmp_path).values()
    assert state == "not run"
    assert message


def test_guard_that_does_not_turn_red(
    upstream: Upstream, checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.put({"model/a.patch": upstream.patch(message("model/a"), {MODEL: lines(1, 40, l7="seven")})})
    guard = checkout.root / "guards" / "guard_model.py"
    guard.parent.mkdir()
    guard.write_text(READ + "def test_model():\n    assert 'line 8' in TEXT\n")
    assert main(["series", "guards"]) == 6
    said = "error: model/a: guards/guard_model.py::test_model is green with all patches and green without model/a"
    assert said in capsys.readouterr().err


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
    assert main(["series", "guards", "model/a"]) == 0
    assert "guards: 1" in capsys.readouterr().out
    assert main(["series", "guards", "model/z"]) == 2
    assert "model/z: no such patch; the series has: model/a, model/b" in capsys.readouterr().err
