"""The step ahead of time with what the cache has: time, and size of the official aarch64 wheel after it.

`vllm-spark aot compile` fills the cache first. The size is promised for a full cache only.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import Figure, report
from vllm_spark import paths
from vllm_spark.distro import profile
from vllm_spark.distro.aot.assembler import Assembler
from vllm_spark.distro.aot.members import survey
from vllm_spark.distro.aot.splice import State
from vllm_spark.distro.aot.supply import open_supply
from vllm_spark.distro.ext import toolchain
from vllm_spark.distro.upstream import fetch, pins
from vllm_spark.distro.wheel.repack import repack


def main() -> int:
    upstream = pins.load()
    pin = upstream.file("wheel", "aarch64")
    official = fetch.fetch(upstream.project, pin)
    supply = open_supply(Assembler.of(toolchain.ensure(profile.load("gb10-cu130"))))
    tag = pin.name.removesuffix(".whl").rpartition("-")[2]
    started = time.monotonic()
    states = [image.state for image in survey(official, supply)]
    seconds = time.monotonic() - started
    with tempfile.TemporaryDirectory(dir=paths.cache_dir(), prefix="bench-") as folder:
        done = repack(
            official,
            Path(folder),
            version=upstream.vllm_version,
            platform_tag=tag,
            replaced={},
            keep_for=supply.device,
            compiled=supply,
        )
        share = done.size / official.stat().st_size
    full = State.MISSING not in states
    figures = [
        Figure("images compiled", states.count(State.COMPILED), ""),
        Figure("images missing", states.count(State.MISSING), ""),
        Figure("images kept as PTX", states.count(State.KEPT), ""),
        Figure("read, find and check all images", seconds, "s", "< 20 s", seconds < 20),
        Figure("whole repack with them", done.seconds["total"], "s"),
        Figure("wheel / official wheel", share, "", "<= 0.48" if full else "", not full or share <= 0.48),
    ]
    return report("aot", figures)


if __name__ == "__main__":
    sys.exit(main())
