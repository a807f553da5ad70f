"""An aarch64 system without its hardware, and without root: Debian's packages unfolded, run by qemu-user.

No maintainer script runs, nothing is mounted or registered, and nothing outside the cache folder changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from vllm_spark import console, paths, proc

__all__ = ["Emulated", "debian", "emulated", "need"]

_TORCH = "torch==2.10.0"  # the oldest that the extension loads with; its aarch64 wheel is a CPU build
_PACKAGES = ("python3", "libstdc++6")
_APT_CONF = """
Dir::State "{0}/state"; Dir::State::status "{0}/status"; Dir::Cache "{0}/cache";
APT::Architecture "arm64"; APT::Architectures {{ "arm64"; }};
Acquire::Languages "none"; APT::Sandbox::User "";
"""


@dataclass(frozen=True)
class Emulated:
    """The system: `root/` holds Debian, `site/` Python packages."""

    folder: Path

    @property
    def python_version(self) -> str:
        """Such as "3.11"."""
        return (self.folder / "root" / "usr" / "bin" / "python3").readlink().name.removeprefix("python")

    def python(self, *args: str | Path, path: tuple[Path, ...] = ()) -> proc.Finished:
        """Run its Python with `path` before its own packages."""
        root = self.folder / "root"
        libraries = [root / part / "aarch64-linux-gnu" for part in ("lib", "usr/lib")]
        variables = {
            "PYTHONHOME": root / "usr",
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "PYTHONPATH": ":".join(map(str, (*path, self.folder / "site"))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
        }
        given = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
        qemu = need("qemu-aarch64-static", "qemu-user-static")
        argv = [qemu, "-L", root, *given, root / "usr" / "bin" / "python3", *args]
        # Not where the checkout is importable, and with none of the variables that lead to it.
        return proc.run(argv, cwd=self.folder, env={"PATH": os.defpath, "HOME": str(self.folder)}, check=False)


def need(tool: str, package: str) -> str:
    """The tool, or a failed test that says how to get it."""
    found = shutil.which(tool)
    if found is None:
        pytest.fail(f"{tool} is not installed: apt-get install {package}")
    return found


def emulated() -> Emulated:
    """The system from the cache, made on first use: half a minute with a good line, 0.8 GB."""
    need("qemu-aarch64-static", "qemu-user-static")
    need("dpkg-deb", "dpkg")
    release = Path("/etc/os-release").read_bytes()
    digest = hashlib.sha256(release + Path(__file__).read_bytes()).hexdigest()[:16]
    folder = paths.cache_dir("aarch64") / digest
    with paths.lock(folder.parent / f".{digest}.lock", wait=True):
        if not folder.is_dir():
            paths.require_space(folder, 3 << 30)
            with console.step("making an aarch64 system"), paths.atomic_dir(folder) as fresh:
                debian(fresh)
                _site(Emulated(fresh))
    return Emulated(folder)


def debian(fresh: Path, packages: tuple[str, ...] = _PACKAGES) -> None:
    """Let the machine's own apt, with an empty state for arm64, find and check what Python needs."""
    apt = fresh / "apt"
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "apt.conf").write_text(_APT_CONF.format(apt))
    env = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    tool = need("apt-get", "apt")
    proc.run([tool, "update", "-qq"], env=env)
    proc.run([tool, "install", "-qq", "-y", "--download-only", "--no-install-recommends", *packages], env=env)
    (fresh / "root").mkdir()
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        proc.run(["dpkg-deb", "-x", package, fresh / "root"])
    shutil.rmtree(apt)


def _site(system: Emulated) -> None:
    options = ["--python-platform", "aarch64-manylinux_2_28", "--python-version", system.python_version]
    target = ["--only-binary", ":all:", "--link-mode", "copy", "--target", str(system.folder / "site")]
    proc.run([sys.executable, "-m", "uv", "pip", "install", *options, *target, _TORCH, "numpy", "pip"])
