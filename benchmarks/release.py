"""How long `make release` takes with a warm cache, and how large the patched wheel is beside the official one."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from benchmarks.common import Figure, report
from vllm_spark.distro.release import pipeline

SECONDS = 180
SHARE = 0.55


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        made = pipeline.build("gb10-cu130", out, out / "index")
        official = made.upstream.file("wheel", made.profile.machine).size
        share = made.repacked.size / official
        total = sum(made.seconds.values())
    figures = [Figure(name, seconds, "s") for name, seconds in made.seconds.items()]
    cores = os.cpu_count()
    figures += [
        Figure(f"make release, warm cache, {cores} cores", total, "s", f"< {SECONDS} s", total < SECONDS),
        Figure("patched wheel / official wheel", share, "", f"<= {SHARE}", share <= SHARE),
    ]
    return report("release", figures)


if __name__ == "__main__":
    sys.exit(main())
