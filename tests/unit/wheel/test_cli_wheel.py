import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark.cli.main import main

Build = Callable[..., Path]
EXPECTED = """
[[wheels]]
project = "demo"
machine = "x86_64"
device = "12.1"
max_size = 60000
[wheels.extensions]
"demo/many.abi3.so" = { verdict = "native", native = 3, jit = 0 }
"""


def test_inspect_json(build_wheel: Build, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wheel", "inspect", str(build_wheel()), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    (extension,) = facts["elf"]
    assert extension["verdict"] == "native"
    assert extension["kernels"] == {"native": 3, "absent": 1}
    assert extension["unusable"] == {"sm_80": 1, "sm_90a": 2, "sm_100f": 1}


def test_inspect_for_another_device(build_wheel: Build, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wheel", "inspect", str(build_wheel()), "--cc", "7.5"]) == 0
    out = capsys.readouterr().out
    assert "judged for 7.5" in out
    assert "0/0/4" in out


def test_repack_then_audit(build_wheel: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out, expected, core = build_wheel(), tmp_path / "out", tmp_path / "audit.toml", tmp_path / "core.py"
    expected.write_text(EXPECTED)
    core.write_text("pass\n")
    assert main(["wheel", "audit", str(source), "--expected", str(expected)]) == 7
    assert "W003  FAIL  demo/many.abi3.so: carries code that 12.1 cannot use" in capsys.readouterr().out
    command = ["wheel", "repack", str(source), "--out", str(out), "--version", "1.2.0+spark.1", "--keep-for", "12.1"]
    assert main([*command, "--replace", f"demo/core.py={core}"]) == 0
    assert "1 sm_80" in capsys.readouterr().out
    (made,) = out.iterdir()
    assert main(["wheel", "audit", str(made), "--expected", str(expected), "--original", str(source)]) == 0
    assert "FAIL" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["inspect", "nowhere-1-py3-none-any.whl"], 2, "no such file"),
        (["inspect", "nowhere.txt"], 7, "not a wheel file name"),
        (["inspect", "{wheel}", "--cc", "twelve"], 2, "not a compute capability"),
        (["repack", "{wheel}", "--version", "1.2.0", "--replace", "x"], 2, "not MEMBER=FILE"),
        (["repack", "{wheel}"], 2, "--version"),
        (["repack", "{wheel}", "--version", "1.2.0", "--out", "/proc/none"], 10, "/proc/none"),
        (["audit", "{wheel}"], 2, "0 entries for demo on x86_64"),
        ([], 2, "ACTION"),
    ],
)
def test_errors_are_one_line(
    build_wheel: Build, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    words = [word.format(wheel=build_wheel()) for word in arguments]
    assert main(["wheel", *words]) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err


def test_damaged_wheel(build_wheel: Build, capsys: pytest.CaptureFixture[str]) -> None:
    path = build_wheel(record=b"demo/core.py,sha256=x,600\n")
    assert main(["wheel", "repack", str(path), "--version", "1.2.0+a", "--out", str(path.parent / "out")]) == 9
    assert "not listed in RECORD" in capsys.readouterr().err
    assert not (path.parent / "out").exists()
