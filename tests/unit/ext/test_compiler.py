"""Which C++ compiler is taken, and when one may be installed."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

import pytest

from vllm_spark.distro.ext import compiler
from vllm_spark.errors import ProcessError, ToolMissing

if TYPE_CHECKING:
    from pathlib import Path

OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]
CROSS = f"{OTHER}-linux-gnu-g++"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH; empty."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("VLLM_SPARK_INSTALL", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return folder


def program(folder: Path, name: str, text: str = "#!/bin/sh\n") -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_native_and_cross(programs: Path) -> None:
    native, cross = program(programs, "g++"), program(programs, CROSS)
    assert compiler.find(platform.machine()) == native
    assert compiler.find(OTHER) == cross


@pytest.mark.parametrize(
    ("machine", "command"),
    [
        (platform.machine(), "apt-get install g++"),
        (OTHER, f"apt-get install g++-{OTHER.replace('_', '-')}-linux-gnu"),
    ],
)
def test_missing_is_named_with_its_command(programs: Path, machine: str, command: str) -> None:
    with pytest.raises(ToolMissing) as caught:
        compiler.find(machine)
    assert str(caught.value).endswith(f"Next: {command}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "user", "apt", "may"),
    [
        ("1", 0, True, True),
        ("0", 0, True, False),
        ("", 0, True, False),
        (None, 0, True, False),
        ("1", 1000, True, False),
        ("1", 0, False, False),
    ],
)
def test_who_may_install(
    programs: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, user: int, apt: bool, may: bool
) -> None:
    if variable is not None:
        monkeypatch.setenv("VLLM_SPARK_INSTALL", variable)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if apt:
        program(programs, "apt-get")
    assert compiler.may_install() is may


# apt-get itself cannot be had here: it would change the machine that runs the test.
APT = """#!/bin/sh
echo "$@" >> {log}
case "$1" in install) printf '#!/bin/sh\\n' > {made}; {chmod} 755 {made};; esac
"""


def test_installs_where_allowed(programs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_SPARK_INSTALL", "1")
    log, made = tmp_path / "log", programs / CROSS
    program(programs, "apt-get", APT.format(log=log, made=made, chmod="/bin/chmod"))
    assert compiler.find(OTHER) == made
    package = f"g++-{OTHER.replace('_', '-')}-linux-gnu"
    assert log.read_text().splitlines() == ["update -qq", f"install -y -qq --no-install-recommends {package}"]


def test_a_failed_install_is_told(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SPARK_INSTALL", "1")
    program(programs, "apt-get", "#!/bin/sh\necho no network >&2\nexit 100\n")
    with pytest.raises(ProcessError, match="no network"):
        compiler.find(OTHER)
