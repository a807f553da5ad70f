"""The command line: help, exit codes, and what a person reads on standard error."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from vllm_spark import console, proc
from vllm_spark.cli.main import VERBS, main
from vllm_spark.errors import ProcessError, SparkError, ToolMissing


def leaves(cls: type[SparkError]) -> list[type[SparkError]]:
    return [cls, *(leaf for sub in cls.__subclasses__() for leaf in leaves(sub))]


def test_each_error_has_its_own_exit_code() -> None:
    codes = [cls.exit_code for cls in leaves(SparkError) if cls.__module__ == "vllm_spark.errors"]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_a_module_with_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(f"vllm_spark.cli.{verb}")
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"vllm-spark {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["nonsense"], [], ["--nonsense"], ["series", "--nonsense"], ["wheel", "audit"]])
def test_wrong_words_are_configuration_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "--help" in err


def test_importing_the_command_needs_no_library() -> None:
    code = "import sys; import vllm_spark.cli.main; print(*sys.modules)"
    assert not {"rich", "msgspec", "torch"} & set(proc.run([sys.executable, "-c", code]).text.split())


def test_message_says_what_where_next() -> None:
    err = SparkError("it broke", where="file.toml", hint="mend it")
    assert str(err) == "file.toml: it broke. Next: mend it"
    assert str(SparkError("it broke")) == "it broke"


def test_github_annotation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    console.error(SparkError("100% wrong\nsecond line"))
    assert "::error::100%25 wrong%0Asecond line" in capsys.readouterr().err


def test_process_errors_carry_command_and_output() -> None:
    with pytest.raises(ProcessError, match=r"exit status 3\n    told"):
        proc.run([sys.executable, "-c", "import sys; print('told'); sys.exit(3)"])
    with pytest.raises(ProcessError, match="no end after"):
        proc.run([sys.executable, "-c", "import time; time.sleep(9)"], timeout=0.2)
    with pytest.raises(ToolMissing, match="no-such-program"):
        proc.run(["no-such-program"])


def test_plain_progress_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_PLAIN_PERIOD", 0.0)
    with console.progress("fetch", 3 << 20) as bar:
        bar.advance(1 << 20)
    assert capsys.readouterr().err == "  fetch: 1 of 3 MiB\n"


def test_bar_on_a_terminal() -> None:
    code = (
        "from vllm_spark import console\nwith console.progress('fetch', 3, 'files') as bar:\n    bar.advance(3)\n"
        "print(bar.done)"
    )
    done = subprocess.run(
        ["script", "-qec", f'{sys.executable} -c "{code}"', "/dev/null"], capture_output=True, text=True, check=True
    )
    assert "fetch" in done.stdout
    assert "3/3" in done.stdout
