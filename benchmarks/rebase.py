"""How long a plan takes: the series between two real releases whose sources are cached, and 200 synthetic patches."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import Figure, report
from tests.fakes.upstream_repo import Upstream, lines, message
from vllm_spark import paths
from vllm_spark.distro.rebase.ladder import Ladder
from vllm_spark.distro.rebase.merge import Bench
from vllm_spark.distro.rebase.origin import Release
from vllm_spark.distro.rebase.plan import make_plan
from vllm_spark.distro.series import store
from vllm_spark.distro.upstream import pins
from vllm_spark.distro.upstream.git import Repository

ROUNDS = 3
MANY = 200


def main() -> int:
    upstream, patches = pins.load(), paths.repo_root() / "patches"
    figures = []
    for version in ("0.32.0", "0.31.0", "0.23.0"):
        # fetches and imports what the cache has not
        count = len(make_plan(upstream, version, patches).results)
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            make_plan(upstream, version, patches)
            times.append(time.perf_counter() - start)
        name = f"plan of {count} patches, {upstream.version} to {version}, best of {ROUNDS}"
        figures.append(Figure(name, min(times), "s", "< 5 s", min(times) < 5))
    seconds, right = _many()
    figures.append(Figure(f"verdicts on {MANY} synthetic patches", seconds, "s", "< 60 s", seconds < 60))
    figures.append(Figure("of these verdicts right", right, "of 200", "all", right == MANY))
    return report("rebase", figures)


def _many() -> tuple[float, int]:
    """Every seventh patch landed, the lines of every fifth file moved, the others are clean."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        upstream = Upstream(root)
        starts = range(0, MANY * 100, 100)
        files = {f"vllm/m{n}.py": lines(at, at + 30) for n, at in enumerate(starts)}
        ours = {f"vllm/m{n}.py": lines(at, at + 30, **{f"l{at + 15}": "ours"}) for n, at in enumerate(starts)}
        upstream.release("0.33.0", files)
        commits = [(message(f"model/p{n}"), {name: ours[name]}) for n, name in enumerate(files)]
        for n, data in enumerate(upstream.many(commits)):
            path = root / "patches" / "model" / f"p{n}.patch"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (root / "patches" / "series").write_text("".join(f"model/p{n}.patch\n" for n in range(MANY)))
        new = {name: ours[name] if n % 7 == 0 else files[name] for n, name in enumerate(files)}
        new = {name: (b"moved\n" if n % 5 == 0 else b"") + data for n, (name, data) in enumerate(new.items())}
        upstream.release("0.34.0", new)
        bench = Bench(Repository.create(root / "bench.git", borrow=upstream.mirror.path).path)
        tags = upstream.mirror.repository
        old, onto = (Release(v, tags.line("rev-parse", f"v{v}^{{commit}}")) for v in ("0.33.0", "0.34.0"))
        start = time.perf_counter()
        results = Ladder(bench, store.survey(root / "patches"), old, onto).climb()
        seconds = time.perf_counter() - start
    wanted = ["landed" if n % 7 == 0 else "offset" if n % 5 == 0 else "clean" for n in range(MANY)]
    return seconds, sum(result.verdict == verdict for result, verdict in zip(results, wanted, strict=True))


if __name__ == "__main__":
    sys.exit(main())
