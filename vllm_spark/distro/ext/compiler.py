"""The C++ compiler for a machine: the native one, or Debian's cross compiler, installed only when that is allowed."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from vllm_spark import console, proc
from vllm_spark.errors import ToolMissing

__all__ = ["find", "may_install"]


def find(machine: str) -> Path:
    """The g++ that compiles for `machine`.

    A cross compiler that is missing is installed with apt-get where `may_install` says so.

    Raises:
        ToolMissing: there is none; the message has the command that installs it.
    """
    native = machine == platform.machine()
    command = "g++" if native else f"{machine}-linux-gnu-g++"
    package = "g++" if native else f"g++-{machine.replace('_', '-')}-linux-gnu"
    found = shutil.which(command)
    if found is None and may_install():
        _install(package)
        found = shutil.which(command)
    if found is None:
        raise ToolMissing(f"no C++ compiler for {machine}", where=command, hint=f"apt-get install {package}")
    return Path(found)


def may_install() -> bool:
    """Whether the person allowed it (`VLLM_SPARK_INSTALL=1`) and this is root on a machine with apt-get.

    Being root is not leave enough: a build must not change a machine's packages unasked.
    """
    allowed = os.environ.get("VLLM_SPARK_INSTALL") == "1"
    return allowed and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install(package: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with console.step(f"installing {package}"):
        proc.run(["apt-get", "update", "-qq"], env=env)
        proc.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], env=env)
