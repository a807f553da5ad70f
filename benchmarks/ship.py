"""How long a release takes to be put together and checked, and what the image adds, from what lies in a folder.

    python -m benchmarks.ship [DIST [BUNDLE [IMAGE]]]

DIST holds wheels and index of `make release` (default: dist), BUNDLE a bundle of them, IMAGE the image made from it.
Works on a copy of DIST. Without BUNDLE a small one is made, of the two wheels alone.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import Figure, report
from vllm_spark.distro.bundle import make
from vllm_spark.distro.bundle.target import Target
from vllm_spark.distro.image import verify as images
from vllm_spark.distro.release import gather
from vllm_spark.distro.release.assemble import Options, assemble
from vllm_spark.distro.release.verify import verify
from vllm_spark.distro.upstream import pins

VERIFY_SECONDS = 30


def main() -> int:
    given = [Path(word) for word in sys.argv[1:]]
    dist = given[0] if given else Path("dist")
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "dist")
        shutil.copytree(dist, copy, ignore=shutil.ignore_patterns("bundle*", "image*", "vllm-spark-*"))
        figures = _release(copy, given[1] if len(given) > 1 else _bundle(copy, Path(scratch)))
    if len(given) > 2:
        figures += _image(given[2], dist)
    return report("ship", figures)


def _bundle(dist: Path, scratch: Path) -> Path:
    upstream = pins.load()
    ours = [f"vllm=={upstream.vllm_version}", f"vllm-spark=={upstream.package_version}"]
    return make.make(make.plan(ours, str(dist / "index"), Target(), dependencies=False), scratch / "bundle")


def _release(dist: Path, bundle: Path) -> list[Figure]:
    start = time.perf_counter()
    assemble(dist, Options(bundle, dist / "index", accept="a benchmark; nothing is released"))
    middle = time.perf_counter()
    problems = verify(dist).problems
    end = time.perf_counter()
    if problems:
        sys.exit(f"not sound: {problems[0]}")
    size = sum(path.stat().st_size for path in dist.rglob("*") if path.is_file())
    return [
        Figure("release assemble", middle - start, "s"),
        Figure("release verify", end - middle, "s", f"< {VERIFY_SECONDS} s", end - middle < VERIFY_SECONDS),
        Figure("bytes verified", size / 2**20, "MiB"),
    ]


def _image(folder: Path, dist: Path) -> list[Figure]:
    start = time.perf_counter()
    found, problems = images.verify(folder, gather.wheels(dist, pins.load()))
    seconds = time.perf_counter() - start
    if problems:
        sys.exit(f"not sound: {problems[0]}")
    return [
        Figure("image verify", seconds, "s"),
        Figure("image as pulled", found.compressed / 1e6, "MB"),
        Figure("added to base and wheels", found.added / 1e6, "MB", "<= 300 MB", found.added <= images.BUDGET),
    ]


if __name__ == "__main__":
    sys.exit(main())
