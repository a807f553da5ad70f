"""The verb: results, exit codes, one line per failure."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.index import wheels
from vllm_spark.cli.main import main
from vllm_spark.distro.index.state import load


@pytest.fixture
def out(tmp_path: Path) -> Path:
    made = [str(wheel) for count in (1, 2) for wheel in wheels.release(tmp_path / "in", count)]
    release = tmp_path / "release.json"
    patch = {"name": "model/x", "summary": "x", "upstream": "https://example.org/1"}
    described = {"project": "vllm-spark", "version": "0.33.0.2", "vllm": "0.33.0", "cuda": "13.0", "torch": "2.14.0"}
    release.write_text(json.dumps(described | {"python": ">=3.11", "patches": [patch]}))
    words = ["--uploaded", "2026-01-31T12:00:00Z", "--release", str(release), "--base-url", "https://example.org/i"]
    tracks = ["--tracks", "vllm=https://example.org/simple/vllm/"]
    made += words + tracks
    assert main(["index", "build", str(tmp_path / "index"), *made]) == 0
    return tmp_path / "index"


def test_build_records_what_it_was_told(out: Path) -> None:
    known = load(out)
    assert known.site.base_url == "https://example.org/i"
    assert {fact.uploaded for fact in known.files} == {"2026-01-31T12:00:00.000000Z"}
    assert known.projects[0].tracks == ("https://example.org/simple/vllm/",)
    assert known.releases[0].patches[0].name == "model/x"


def test_build_prints_what_it_added(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["index", "build", str(out), *map(str, wheels.release(tmp_path / "in", 3))]) == 0
    text = capsys.readouterr().out
    assert "vllm_spark-0.33.0.3-cp311-abi3-manylinux_2_34_aarch64.whl" in text
    assert "0.33.0.2" not in text


def test_verify_says_which_rules_hold(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "verify", str(out), "--without-clients"]) == 0
    assert "4 files, rules I001 I002 I003 I005 I006 hold" in capsys.readouterr().out


def test_verify_lists_every_violation_and_exits_7(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out / "index.html").write_text("mine")
    next((out / "files").glob("vllm-*spark.1*.whl")).unlink()
    assert main(["index", "verify", str(out), "--without-clients"]) == 7
    said = capsys.readouterr()
    assert "I003" in said.out
    assert "I005" in said.out
    assert said.err.splitlines()[-1].startswith(f"error: {out}: 2 violations in 4 files. Next: ")


def test_yank_then_rollback(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "yank", str(out), "0.33.0.2", "--reason", "broken"]) == 0
    assert main(["index", "yank", str(out), "0.33.0.2", "--reason", "broken"]) == 3
    capsys.readouterr()
    assert main(["index", "rollback", str(out)]) == 0
    text = capsys.readouterr().out
    assert "python -m pip install --index-url https://example.org/i/simple/" in text
    assert "vllm-spark==0.33.0.1 --hash=sha256:" in text


def _cut_wheel(tmp: Path) -> list[str]:
    wheel = wheels.make(tmp / "bad", "vllm", "9")
    wheel.write_bytes(wheel.read_bytes()[:100])
    return ["build", str(tmp / "index"), str(wheel)]


def _other_bytes(tmp: Path) -> list[str]:
    changed = wheels.release(tmp / "bad", 1, content=b"# other\n")
    return ["build", str(tmp / "index"), *map(str, changed)]


def _bad_json(tmp: Path) -> list[str]:
    (tmp / "bad.json").write_text('{"project":"vllm-spark"}')
    return ["build", str(tmp / "index"), "--release", str(tmp / "bad.json")]


BAD: list[tuple[Callable[[Path], list[str]], int, str]] = [
    (_cut_wheel, 7, "not a whole wheel"),
    (_other_bytes, 9, "the index has this file as sha256"),
    (_bad_json, 2, "not a release description"),
    (lambda tmp: ["build", str(tmp / "index"), str(tmp / "no.whl")], 2, "no such file"),
    (lambda tmp: ["build", str(tmp / "index"), "--uploaded", "yesterday"], 2, "write it as 2026-01-31T12:00:00Z"),
    (lambda tmp: ["build", str(tmp / "index"), "--release", str(tmp / "no.json")], 2, "not a release description"),
    (lambda tmp: ["build", str(tmp / "index"), "--tracks", "vllm"], 2, "PROJECT=URL"),
    (lambda tmp: ["build", str(tmp / "index"), "--tracks", "vllm=nowhere"], 2, "PROJECT=URL"),
    (lambda tmp: ["build", str(tmp / "index"), "--base-url", "nowhere"], 2, "correct the value"),
    (lambda tmp: ["build", str(tmp / "release.json")], 2, "not a folder"),
    (lambda tmp: ["build", str(tmp / "release.json" / "deep" / "er")], 2, "not a folder"),
    (lambda tmp: ["verify", str(tmp / "nowhere")], 7, "this is no index"),
    (lambda tmp: ["yank", str(tmp / "index"), "9", "--reason", "x"], 2, "no release 9"),
    (lambda tmp: ["yank", str(tmp / "index"), "0.33.0.1", "--reason", " "], 2, "needs a reason"),
    (lambda tmp: ["rollback", str(tmp / "index"), "9"], 2, "no release 9"),
    (lambda tmp: ["polish", str(tmp / "index")], 2, "--help"),
]


@pytest.mark.parametrize(("words", "code", "message"), BAD)
def test_one_clear_line_and_its_exit_code(
    out: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: Callable[[Path], list[str]],
    code: int,
    message: str,
) -> None:
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["index", *words(tmp_path)]) == code
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
