"""Takes memory step by step until it is stopped: alone, or with the guard watching. Run inside a limited cgroup."""

from __future__ import annotations

import sys
import time

STEP = 4 << 20  # bytes; every page is written, so that it counts


def main() -> None:
    procs, mode, soft, hard = sys.argv[1:5]
    with open(procs, "a") as file:  # noqa: PTH123 - before pathlib costs memory in the group
        file.write("0")
    watch = None
    if mode == "guarded":
        from vllm_spark.runtime.kv import guard

        watch = guard.watch(1 << 40, limits=guard.Limits(int(soft), int(hard)))
        watch.phase = "eat"
    taken: list[bytearray] = []
    while True:
        taken.append(bytearray(b"x") * STEP)
        if len(sys.argv) > 5 and watch is not None:
            sample = watch.sensors.sample()
            print(f"{sample.time:.3f},{sample.headroom >> 10},{sample.stall:.3f}", flush=True)
        time.sleep(0.02)


main()
