"""`make bench`: every benchmark that needs no GPU, each in a process of its own, one after the other."""

from __future__ import annotations

import subprocess
import sys

# Those of a GPU machine (kernels, loading, kv) are run there by name.
BENCHMARKS = ("series", "index", "repack", "release", "rebase")


def main() -> int:
    broken = [
        name
        for name in BENCHMARKS
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
    ]
    for name in broken:
        sys.stderr.write(f"benchmark {name}: a promise is broken, or it failed\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
