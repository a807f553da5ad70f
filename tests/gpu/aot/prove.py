"""Proof on a GPU: compiled images run where stock ones must be compiled, and compute the same bits.

    python3 -m tests.gpu.aot.prove CARRY OUT [calls|speed]

CARRY is the folder that `tests.gpu.aot.pack` wrote; OUT gets `prove.json`. The stock file is FlashAttention 2 of
upstream's x86-64 wheel, with the PTX of the covering set and without the code that this GPU cannot use; most of its
fat binaries are empty, so that each load is the proof that such ones load. `calls` compares results and first calls,
`speed` the steady state, for the images that CARRY's cache has. Exit code 0 only if everything held.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from vllm_spark.distro.ext.toolchain import Toolchain
    from vllm_spark.distro.profile import Profile

ROOT = Path("/tmp/vllm-spark-aot")  # noqa: S108 - a bare machine of our own
TOLERANCE = {"bf16": 8e-3, "f16": 1e-3}
HEADLINE = "128 bf16 causal"


class Carried:
    """The tools of `Toolchain` that the step needs; that class itself would want libraries for fetching."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.env = {**os.environ, "PATH": f"{ROOT / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        self.ptxas, self.fatbinary, self.cuobjdump, self.nvdisasm = (
            ROOT / "bin" / name for name in ("ptxas", "fatbinary", "cuobjdump", "nvdisasm")
        )


class Proof:
    """What was seen, written down after every step, and what did not hold."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.seen: dict[str, Any] = {"machine": platform.machine(), "cores": os.cpu_count()}
        self.broken: list[str] = []
        self.started = time.monotonic()

    def note(self, name: str, value: Any, *, show: bool = True) -> None:
        self.seen[name] = value
        document = json.dumps({**self.seen, "broken": self.broken}, indent=1)
        (self.out / "prove.json").write_text(document + "\n")
        if show:
            print(f"[{time.monotonic() - self.started:5.0f} s] {name}: {value}", flush=True)

    def must(self, condition: bool, what: str) -> None:
        if not condition:
            self.broken.append(what)
            print(f"BROKEN: {what}", flush=True)


def build(proof: Proof, part: str) -> None:
    """The step itself, as it runs in a release, for this GPU."""
    os.environ["VLLM_SPARK_CACHE"] = str(ROOT / "cache")
    sys.path.append(str(ROOT / "site"))
    from vllm_spark.distro import profile
    from vllm_spark.distro.aot.assembler import Assembler
    from vllm_spark.distro.aot.fill import fill
    from vllm_spark.distro.aot.splice import State
    from vllm_spark.distro.aot.supply import open_supply
    from vllm_spark.distro.aot.verify import verify
    from vllm_spark.distro.elf.source import FileSource, chunks
    from vllm_spark.distro.wheel.devicecode import DeviceCode

    supply = open_supply(Assembler.of(cast("Toolchain", Carried(profile.load("h100-cu130")))))
    with FileSource(ROOT / "stock.so") as source:
        if part == "calls":
            proof.note("compiled", vars(fill(supply, [source])))
        code = DeviceCode(supply.device, supply)
        result = code.rewrite(source)
        proof.must(result is not None, "nothing was spliced")
        if result is not None:
            (ROOT / "ours.so").write_bytes(b"".join(chunks(result)))
    states = [one.state for one in code.images]
    proof.note("images compiled", states.count(State.COMPILED))
    proof.must(part == "speed" or set(states) == {State.COMPILED}, "an image was not compiled")
    seen = verify(ROOT / "ours.so", "ours.so", supply.target, supply.assembler.tools)
    proof.note("cuobjdump agrees", vars(seen))


def work(library: str, mode: str, names: list[str], cache: str, *, jit: bool = True) -> dict[str, dict[str, Any]]:
    """One process with its own compute cache folder; results by case."""
    folder = ROOT / "out" / library
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "CUDA_CACHE_PATH": str(ROOT / cache), "CUDA_CACHE_MAXSIZE": str(4 << 30)}
    if not jit:
        env["CUDA_DISABLE_PTX_JIT"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.aot.worker", str(ROOT / f"{library}.so"), str(folder), mode, *names],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {one.pop("case"): one for one in results}
    for name in names:
        found.setdefault(name, {"failed": done.stderr.strip().splitlines()[-1:]})
    return found


def compare(proof: Proof, stock: dict[str, dict[str, Any]], ours: dict[str, dict[str, Any]]) -> None:
    import torch

    rows = []
    for name, mine in ours.items():
        theirs = stock[name]
        proof.must("first_s" in mine and "first_s" in theirs, f"{name}: {mine} / {theirs}")
        if "first_s" not in mine or "first_s" not in theirs:
            continue
        one, two = (torch.load(ROOT / "out" / library / f"{name}.pt") for library in ("stock", "ours"))
        same = all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
        proof.must(same, f"{name}: outputs differ")
        proof.must(mine["error"] < TOLERANCE[name.split()[1]], f"{name}: error {mine['error']}")
        rows.append({"case": name, "equal": same, "error": mine["error"], "stock": theirs, "ours": mine})
        print(
            f"  {name:32} equal {same}  error {mine['error']:.1e}  first {theirs['first_s'] * 1e3:9.1f} -> "
            f"{mine['first_s'] * 1e3:.1f} ms, second {theirs['second_s'] * 1e3:.2f} -> {mine['second_s'] * 1e3:.2f} ms",
            flush=True,
        )
    proof.note("cases", rows, show=False)
    proof.note("bit-equal cases", sum(row["equal"] for row in rows))


def speed(proof: Proof, names: list[str]) -> None:
    """Stock, ours, ours, stock, each with its code at hand: the spread of equal builds is the noise."""
    runs = [(library, work(library, "steady", names, "jit")) for library in ("stock", "ours", "ours", "stock")]
    rows = {}
    for name in names:
        times = {"stock": [], "ours": []}  # type: dict[str, list[float]]
        for library, found in runs:
            times[library].append(found[name].get("steady_s", float("nan")))
        ratio = min(times["ours"]) / min(times["stock"])
        rows[name] = {"ratio": ratio, **times}
        print(
            f"  {name:32} {min(times['stock']) * 1e6:8.1f} -> {min(times['ours']) * 1e6:8.1f} us  {ratio:.3f}",
            flush=True,
        )
        proof.must(0.98 <= ratio <= 1.02, f"{name}: steady state {ratio:.3f} of stock")
    proof.note("steady", rows, show=False)
    proof.note("stock first call, warm compute cache, ms", {n: runs[3][1][n].get("first_s", 0) * 1e3 for n in names})


def driver_tests(proof: Proof) -> None:
    """The CUDA driver's view of blanked fat binaries."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [*command, "tests/gpu/wheel/test_blanked_loads.py"], env=env, capture_output=True, text=True, check=False
    )
    proof.note("test_blanked_loads", (done.stdout + done.stderr).strip().splitlines()[-1:])
    proof.must(done.returncode == 0, f"test_blanked_loads: {done.stdout[-2000:]}{done.stderr[-500:]}")


def calls(proof: Proof) -> None:
    from tests.gpu.aot.cases import FIRST, MORE

    first, more = [case.name for case in FIRST], [case.name for case in MORE]
    ours = work("ours", "first", [*first, *more], "none", jit=False)
    proof.note("ours without a JIT", sum("first_s" in one for one in ours.values()))
    refused = work("stock", "first", first, "none2", jit=False)
    proof.note("stock without a JIT", sorted({str(one.get("failed", "ran")) for one in refused.values()}))
    proof.must(all("failed" in one for one in refused.values()), "stock ran although the driver may not compile")
    alone = work("stock", "first", [HEADLINE], "alone")[HEADLINE]
    times = alone.get("first_s", 0) / ours[HEADLINE].get("first_s", 1)
    proof.note("first call, alone on the machine", {"stock": alone, "ours": ours[HEADLINE], "times faster": times})
    proof.must(times >= 1000, f"first call {times:.0f} times faster")
    stock = compiled_by_driver(first)
    stock |= work("stock", "first", more, "jit")
    compare(proof, stock, ours)
    driver_tests(proof)


def compiled_by_driver(names: list[str]) -> dict[str, dict[str, Any]]:
    """Each case in a process of its own, all at once, with one compute cache that is empty when they start."""
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        results = list(pool.map(lambda name: work("stock", "first", [name], "jit"), names))
    return {name: found[name] for name, found in zip(names, results, strict=True)}


def main() -> int:
    carry, out = Path(sys.argv[1]), Path(sys.argv[2])
    part = sys.argv[3] if len(sys.argv) > 3 else "calls"
    proof = Proof(out)
    with tarfile.open(carry / "aot.tar.xz") as packed:
        packed.extractall(ROOT.parent, filter="data")
    (ROOT.parent / "aot").rename(ROOT)
    build(proof, part)
    if part == "calls":
        calls(proof)
    else:
        from tests.gpu.aot.cases import SPEED

        compiled_by_driver(list(SPEED))
        speed(proof, list(SPEED))
    proof.note("broken", proof.broken)
    return 1 if proof.broken else 0


if __name__ == "__main__":
    sys.exit(main())
