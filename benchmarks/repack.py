"""Repacking the official aarch64 wheel, against `wheel unpack` and `wheel pack`, in one run on one machine.

Each method runs in a process of its own, whose peak
resident memory the kernel counts; ours is also measured with dead device code taken out.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import Figure, report
from vllm_spark import console, paths
from vllm_spark.distro.upstream import fetch, pins

if TYPE_CHECKING:
    from collections.abc import Sequence

OURS = """
import sys
from pathlib import Path
from vllm_spark.distro.elf.target import Capability
from vllm_spark.distro.wheel.repack import repack
source, out, version, keep = sys.argv[1:]
tag = source.removesuffix(".whl").rpartition("-")[2]
repack(Path(source), Path(out), version=version, platform_tag=tag, replaced={},
       keep_for=Capability.parse(keep) if keep else None)
"""


@dataclass(frozen=True)
class Measured:
    """One method: wall seconds, peak resident MiB of its largest process, bytes of its result."""

    method: str
    seconds: float
    peak_mib: float
    size: int


def timed(argv: Sequence[str]) -> tuple[float, float]:
    """Run a program; wall seconds and peak resident MiB, from the kernel's own account of that process."""
    console.trace("+ " + " ".join(argv))
    started = time.monotonic()
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        {**os.environ, "SOURCE_DATE_EPOCH": "315532800"},
        file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)],
    )
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{' '.join(argv[:4])} …: exit status {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - started, usage.ru_maxrss / 1024


def ours(source: Path, folder: Path, version: str, keep: str) -> Measured:
    out = folder / f"ours-{keep}"
    seconds, peak = timed([sys.executable, "-c", OURS, str(source), str(out), version, keep])
    (made,) = out.glob("*.whl")
    return Measured("ours, images for 12.1 only" if keep else "ours, all images", seconds, peak, made.stat().st_size)


def library(source: Path, folder: Path) -> Measured:
    tree, out = folder / "tree", folder / "library"
    out.mkdir()
    unpack, unpack_peak = timed([sys.executable, "-m", "wheel", "unpack", "--dest", str(tree), str(source)])
    (root,) = tree.iterdir()
    pack, pack_peak = timed([sys.executable, "-m", "wheel", "pack", "--dest-dir", str(out), str(root)])
    (made,) = out.glob("*.whl")
    return Measured("wheel unpack + pack", unpack + pack, max(unpack_peak, pack_peak), made.stat().st_size)


def main() -> int:
    upstream = pins.load()
    source = fetch.fetch(upstream.project, upstream.file("wheel", "aarch64"))
    # Read once, so that nobody has to wait for the disk first; in pieces, for a child's peak starts from its parent's.
    fetch.sha256_of(source)
    with tempfile.TemporaryDirectory(dir=paths.cache_dir(), prefix="bench-") as name:
        folder = Path(name)
        whole = ours(source, folder, upstream.vllm_version, "")
        blanked = ours(source, folder, upstream.vllm_version, "12.1")
        peer = library(source, folder)
    share = blanked.size / source.stat().st_size
    peak = max(whole.peak_mib, blanked.peak_mib)
    times = peer.seconds / whole.seconds
    figures = [
        figure
        for one in (whole, blanked, peer)
        for figure in (
            Figure(f"{one.method}: time", one.seconds, "s"),
            Figure(f"{one.method}: peak memory", one.peak_mib, "MiB"),
        )
    ]
    figures += [
        Figure("times faster than unpack + pack", times, "", ">= 10", times >= 10),
        Figure("our peak memory", peak, "MiB", "< 400 MiB", peak < 400),
        Figure("blanked wheel / official wheel", share, "", "<= 0.55", share <= 0.55),
    ]
    return report("repack", figures)


if __name__ == "__main__":
    sys.exit(main())
