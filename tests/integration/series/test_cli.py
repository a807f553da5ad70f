"""`vllm-spark series` as people run it: results, one line for each bad input, its exit code, nothing half-written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.upstream_repo import Upstream, lines, message
from tests.integration.series.conftest import Checkout
from vllm_spark.cli.main import main
from vllm_spark.distro.upstream import git

MODEL = "vllm/model.py"


@pytest.fixture
def good(upstream: Upstream, checkout: Checkout) -> bytes:
    """A checkout with one patch that keeps every rule."""
    data = upstream.patch(message("model/a"), {MODEL: lines(1, 40, l7="seven")})
    checkout.put({"model/a.patch": data})
    guard = checkout.root / "guards" / "guard_model.py"
    guard.parent.mkdir()
    guard.write_text("def test_model():\n    assert False\n")
    return data


def test_whole_way(good: bytes, checkout: Checkout, upstream: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["series", "lint"]) == 0
    assert main(["series", "status"]) == 0
    to = checkout.root / "to"
    assert main(["series", "apply", "--to", str(to)]) == 0
    capsys.readouterr()
    assert main(["series", "export"]) == 0
    assert main(["series", "export", "--from", str(to)]) == 0
    assert capsys.readouterr().out == ""
    assert (checkout.patches / "model" / "a.patch").read_bytes() == good
    (to / MODEL).write_bytes(lines(1, 40, l7="SEVEN"))
    upstream.git(to, "commit", "-qa", "--amend", "--no-edit")
    assert main(["series", "export", "--from", str(to)]) == 0
    assert capsys.readouterr().out == "model/a.patch\n"
    assert main(["series", "lint"]) == 0


def test_export_refreshes_displaced_hunks(good: bytes, checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    checkout.put({"model/a.patch": good.replace(b"@@ -4,7 +4,7 @@", b"@@ -9,7 +9,7 @@")})
    assert main(["series", "lint"]) == 6
    assert "P006 Hunk #1 succeeded at 4 (offset -5 lines)" in capsys.readouterr().err
    assert main(["series", "export"]) == 0
    assert (checkout.patches / "model" / "a.patch").read_bytes() == good


def test_other_patches_folder(good: bytes, checkout: Checkout, tmp_path: Path) -> None:
    (checkout.patches / "model").rename(tmp_path / "model")
    (checkout.patches / "series").rename(tmp_path / "series")
    checkout.put({})
    to = tmp_path / "to"
    assert main(["series", "apply", "--patches", str(tmp_path), "--to", str(to)]) == 0
    assert (to / MODEL).read_bytes() == lines(1, 40, l7="seven")


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["series", "lint", "--explain", "P004"]) == 0
    assert capsys.readouterr().out.startswith("P004: The message says why")
    assert main(["series", "lint", "--explain", "P999"]) == 2


BAD = {
    "does not apply": (
        {"model/a.patch": (b" line 9\n", b" line nine\n")},
        None,
        4,
        "model/a.patch: does not apply: vllm/model.py: hunk 1 (line 4)",
    ),
    "malformed hunk header": (
        {"model/a.patch": (b"@@ -4,7 +4,7 @@", b"@@ -4,7 +4,x @@")},
        None,
        4,
        "model/a.patch:27: malformed hunk header",
    ),
    "hunk cut short": ({"model/a.patch": (b" line 10\n", b"")}, None, 4, "model/a.patch:34: malformed hunk"),
    "listed twice": ({}, ["model/a.patch", "model/a.patch"], 4, "model/a.patch is listed more than once"),
    "missing": ({}, ["model/a.patch", "model/b.patch"], 4, "model/b.patch is listed but does not exist"),
    "not listed": ({}, [], 4, "model/a.patch exists but is not listed"),
    "missing trailer": ({"model/a.patch": (b"Spark-Kind: fix\n", b"")}, None, 4, "missing trailer Spark-Kind"),
    "malformed trailer": (
        {"model/a.patch": (b"Spark-Kind: fix\n", b"Spark-Kind: fixed\n")},
        None,
        4,
        "malformed trailer Spark-Kind: 'fixed' is not one of",
    ),
    "malformed entry": ({}, ["model/a.patch -p1"], 2, "series:1: malformed entry 'model/a.patch -p1'"),
    "no date": ({"model/a.patch": (b"Sun, 1 Nov 2026", b"once upon a time")}, None, 4, "git makes no commit of it"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(good: bytes, checkout: Checkout, capsys: pytest.CaptureFixture[str], case: str) -> None:
    swaps, listing, code, line = BAD[case]
    for name, (old, new) in swaps.items():
        assert old in good
        (checkout.patches / name).write_bytes(good.replace(old, new, 1))
    if listing is not None:
        checkout.put({}, listing)
    before = sorted(path for path in checkout.root.rglob("*"))
    assert main(["series", "apply", "--to", str(checkout.root / "to")]) == code
    errors = [row for row in capsys.readouterr().err.splitlines() if row.startswith("error: ")]
    assert len(errors) == 1
    assert line in errors[0]
    assert "Next: " in errors[0]
    assert sorted(path for path in checkout.root.rglob("*")) == before
    if code == 4:
        assert main(["series", "lint"]) == 6


def test_target_not_writable(good: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["series", "apply", "--to", "/sys/vllm-spark/to"]) == 10
    assert "error: /sys/vllm-spark/to: not writable" in capsys.readouterr().err


def test_dirty_target(good: bytes, checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout.root / "to").mkdir()
    (checkout.root / "to" / "mine").write_text("mine")
    assert main(["series", "apply", "--to", str(checkout.root / "to")]) == 2
    assert "exists, and is no tree that `series apply` wrote" in capsys.readouterr().err
    assert (checkout.root / "to" / "mine").read_text() == "mine"


@pytest.mark.parametrize("text", ["git version 2.38.4", "git version 1.9.1", "hub version 2"])
def test_old_git(
    good: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
) -> None:
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho {text}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    assert main(["series", "status"]) == 8
    assert f"{fake}: too old: '{text}'. Next: install git >= 2.39" in capsys.readouterr().err


def test_no_git(good: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["series", "status"]) == 8
    assert "git: not installed. Next: install git >= 2.39" in capsys.readouterr().err


def test_new_git_versions_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = ["git version 2.39.5 (Apple Git-154)", "git version 2.100.0.windows.1", "git version 3.0"]
    for number, text in enumerate(versions):
        fake = tmp_path / str(number) / "git"
        fake.parent.mkdir()
        fake.write_text(f"#!/bin/sh\necho '{text}'\n")
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", str(fake.parent))
        assert git.require() == str(fake)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_apply_leaves_nothing(good: bytes, checkout: Checkout, tmp_path: Path, number: int) -> None:
    """git is held up half-way; the stop arrives; the next run goes through."""
    hold, reached = tmp_path / "bin" / "git", tmp_path / "reached"
    hold.parent.mkdir()
    real = git.require()
    hold.write_text(
        f'#!/bin/sh\ncase "$*" in *checkout-index*) touch {reached}; exec sleep 60;; esac\nexec {real} "$@"\n'
    )
    hold.chmod(0o755)
    to = checkout.root / "to"
    argv = [sys.executable, "-m", "vllm_spark", "series", "apply", "--to", str(to)]
    env = {**os.environ, "PATH": f"{hold.parent}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not reached.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert [path for path in checkout.root.iterdir() if path.name.startswith(".to")]
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert not [path for path in checkout.root.iterdir() if "to" in path.name.split(".")]
    assert main(["series", "apply", "--to", str(to)]) == 0
    assert (to / MODEL).read_bytes() == lines(1, 40, l7="seven")
