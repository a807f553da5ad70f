"""An arm64 system to build images on and to install bundles in: Debian's packages, run by qemu through binfmt_misc.

Needs root and `apt-get install qemu-user-static buildah podman runc`, which .ci/run does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.ext.aarch64 import debian, need
from vllm_spark import console, paths, proc

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PYTHON", "Store", "emulation", "root"]

PYTHON = "3.11"  # Debian 12's
_PACKAGES = ("base-files", "base-passwd", "libc-bin", "dash", "coreutils", "grep", "sed", "python3", "libstdc++6")
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_EPOCH = "315532800"


def root() -> Path:
    """Debian's root folder from the cache, made on first use: a quarter of a minute with a good line, 110 MB."""
    key = Path("/etc/os-release").read_bytes() + Path(__file__).read_bytes()
    folder = paths.cache_dir("arm64") / hashlib.sha256(key).hexdigest()[:16]
    with paths.lock(folder.parent / f".{folder.name}.lock", wait=True):
        if not folder.is_dir():
            with console.step("making an arm64 root"), paths.atomic_dir(folder) as fresh:
                debian(fresh, _PACKAGES)
                # What base-passwd's script would do; no package script runs here.
                for name in ("passwd", "group"):
                    shutil.copy(
                        fresh / "root" / "usr" / "share" / "base-passwd" / f"{name}.master",
                        fresh / "root" / "etc" / name,
                    )
    return folder / "root"


@contextlib.contextmanager
def emulation() -> Iterator[None]:
    """Let the kernel run arm64 programs by qemu; what was not registered before is taken back."""
    need("qemu-aarch64-static", "qemu-user-static")
    if not (_BINFMT / "register").exists():
        proc.run(["mount", "-t", "binfmt_misc", "binfmt_misc", _BINFMT])
    entry = _BINFMT / "qemu-aarch64"
    ours = not entry.exists()
    if ours:
        (_BINFMT / "register").write_text(Path("/usr/lib/binfmt.d/qemu-aarch64.conf").read_text().strip())
    try:
        yield
    finally:
        if ours:
            entry.write_text("-1")


@dataclass(frozen=True)
class Store:
    """A container storage of its own below `folder`, so that the machine's is not touched."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """Makes buildah and podman use it."""
        return os.environ | {
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "BUILDAH_ISOLATION": "chroot",
        }

    def prepare(self) -> None:
        """Write its configuration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        roots = f'graphroot = "{self.folder / "graph"}"\nrunroot = "{self.folder / "run"}"\n'
        (self.folder / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\n{roots}')

    def base(self, tag: str) -> None:
        """An image of `root()`, the same bytes every time."""
        need("buildah", "buildah")
        context = self.folder / "base"
        context.mkdir()
        fixed = ["--sort=name", f"--mtime=@{_EPOCH}", "--owner=0", "--group=0", "--numeric-owner"]
        proc.run(["tar", "-C", root(), *fixed, "-cf", context / "root.tar", "."])
        (context / "Dockerfile").write_text("FROM scratch\nADD root.tar /\nENV PATH=/usr/sbin:/usr/bin:/sbin:/bin\n")
        platform = ["--platform", "linux/arm64", "--timestamp", _EPOCH]
        proc.run(["buildah", "build", "--quiet", *platform, "--tag", tag, context], env=self.env)

    def run(self, tag: str, *words: str, options: tuple[str, ...] = ()) -> proc.Finished:
        """Run a container without a network, as the image says: its user, its entry point."""
        need("podman", "podman")
        need("runc", "runc")
        engine = ["--cgroup-manager", "cgroupfs", "--events-backend", "file"]
        # Lower limits than podman's own, which a machine without CAP_SYS_RESOURCE refuses.
        limits = ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", "--no-healthcheck"]
        fixed = ["--rm", "--arch", "arm64", "--runtime", "runc", "--network", "none", "--pull", "never", *limits]
        return proc.run(
            ["podman", *engine, "run", *fixed, *options, tag, *words], env=self.env, check=False, timeout=300
        )

    def close(self) -> None:
        """Let go of what overlay keeps mounted."""
        for place in (self.folder / "graph" / "overlay", self.folder / "graph"):
            if place.is_mount():
                proc.run(["umount", "--lazy", place])
