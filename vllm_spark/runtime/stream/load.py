"""One load: the plan, the stream, the checks at its end, and the line that says what it took.

Knows torch and the shape of vLLM's model interface, but imports no vLLM: `loader.py` is what vLLM sees.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import torch

from vllm_spark import console
from vllm_spark.errors import ArtefactError, IntegrityError
from vllm_spark.runtime.stream.capture import Copies
from vllm_spark.runtime.stream.finite import FiniteCheck
from vllm_spark.runtime.stream.plan import Limits, make_plan
from vllm_spark.runtime.stream.reader import Reader
from vllm_spark.runtime.stream.weights import Mover, rehearse, weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vllm_spark.runtime.quant.source import Source
    from vllm_spark.runtime.stream.headers import Checkpoint
    from vllm_spark.runtime.stream.options import Options
    from vllm_spark.runtime.stream.plan import Plan, Ranges
    from vllm_spark.runtime.stream.sink import Sink

__all__ = ["Load", "sinks_of"]

# Parameters that vLLM makes for KV-cache scales whether or not a checkpoint has them.
_OPTIONAL = re.compile(r"(\.|_)(q|k|v|prob)_(scale|zero_point)(_float)?$")
_LAYER = re.compile(r"\blayers\.(\d+)\.")


def sinks_of(model: torch.nn.Module) -> dict[str, list[Sink]]:
    """The sinks of every module that quantises on arrival, by module name."""
    found = {name: getattr(module, "spark_sinks", None) for name, module in model.named_modules()}
    return {name: list(sinks) for name, sinks in found.items() if sinks}


class Load:
    """Loads one checkpoint into one model.

    Args:
        checkpoint: scanned and whole.
        sources: how its weights are stored; None when vLLM reads the format itself.
        options: staging, threads, direct I/O.
        device: of the model.
        dtype: of the model.
        sharded: more than one rank shares the weights, so that each needs only a part.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        sources: Mapping[str, Source] | None,
        options: Options,
        *,
        device: torch.device,
        dtype: torch.dtype,
        sharded: bool,
    ) -> None:
        self.checkpoint, self.sources, self.options = checkpoint, sources, options
        self.device, self.dtype, self.sharded = device, dtype, sharded
        self.times: dict[str, float] = {}
        self.sunk: set[str] = set()
        self.nbytes = 0

    def run(self, model: Any, *, skip: frozenset[str] = frozenset()) -> set[str]:  # noqa: ANN401 - any vLLM model
        """Read everything but the keys of `skip`.

        Returns:
            The names of the parameters that the model says it loaded.

        Raises:
            SparkError: a file cannot be read or changed, a weight is not finite, or a part of a layer is missing.
        """
        start = time.monotonic()
        plan = self._plan(model, skip)
        self.times["plan"] = time.monotonic() - start
        sinks = sinks_of(model)
        finite = FiniteCheck(self.checkpoint)
        copies = Copies([sink for group in sinks.values() for sink in group], finite.add)
        try:
            try:
                loaded = self._stream(plan, model, copies)
            except IntegrityError:
                finite.settle()  # a quantiser refused values; this names their file, key and offset
                raise
            start = time.monotonic()
            finite.settle()
            _require_whole(sinks, skipped=bool(skip))
        finally:
            for group in sinks.values():
                for sink in group:
                    sink.close()
        self.sunk = copies.sunk
        self.times["finish"] = time.monotonic() - start
        return loaded

    def _plan(self, model: Any, skip: frozenset[str]) -> Plan:  # noqa: ANN401
        needs: dict[str, Ranges] | None = None
        if self.sharded and self.sources is not None:
            wanted = {key: source for key, source in self.sources.items() if key not in skip}
            needs = rehearse(wanted, Copies([], lambda *_: None), model.load_weights)
        elif skip:
            needs = {k: ((0, t.nbytes),) for k, t in self.checkpoint.tensors.items() if k not in skip}
        return make_plan(self.checkpoint, Limits(self.options.staging_mb << 20), needs)

    def _stream(self, plan: Plan, model: Any, copies: Copies) -> set[str]:  # noqa: ANN401
        start = time.monotonic()
        move = Mover(self.device)
        with (
            Reader(plan, self.checkpoint, threads=self.options.threads, direct=self.options.direct) as reader,
            console.progress("loading", plan.nbytes) as bar,
        ):
            unpin = move.pin(reader.ring.memory)
            try:
                pairs = weights(reader, self.sources, copies, move, self.dtype, self._stepper(bar, start))
                loaded = set(model.load_weights(pairs) or ())
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
            finally:
                unpin()
            self.nbytes = reader.stats.nbytes
            self.times["disk wait"] = reader.stats.waited
        self.times["stream"] = time.monotonic() - start
        return loaded

    def _stepper(self, bar: console.Progress, start: float) -> Any:  # noqa: ANN401 - a callback
        def step(unit: str, nbytes: int) -> None:
            layer = _LAYER.search(unit)
            rate = bar.done / 2**30 / max(1e-9, time.monotonic() - start)
            bar.name = f"loading {'layer ' + layer[1] if layer else unit}, {rate:.2f} GiB/s, peak {self.peak():.1f} GiB"
            bar.advance(nbytes)

        return step

    def peak(self) -> float:
        """GiB of device memory at its highest so far; 0 on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) / 2**30 if self.device.type == "cuda" else 0.0

    def summary(self, schemes: Mapping[str, int]) -> str:
        """The final line: bytes, time by phase, memory, schemes."""
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.times.items())
        used = ", ".join(f"{count} x {scheme}" for scheme, count in sorted(schemes.items())) or "none"
        memory = ""
        if self.device.type == "cuda":
            final = torch.cuda.memory_allocated(self.device) / 2**30
            memory = f"; {final:.2f} GiB on the device, {self.peak():.2f} at the peak"
        rate = self.nbytes / 2**30 / max(1e-9, self.times["stream"])
        return f"read {self.nbytes / 2**30:.2f} GiB at {rate:.2f} GiB/s ({phases}){memory}; schemes: {used}"


def _require_whole(sinks: Mapping[str, list[Sink]], *, skipped: bool) -> None:
    for group in sinks.values():
        for sink in group:
            missing = [] if skipped and not sink.finished else sink.missing()
            if missing:
                of = f"{len(missing)} of its {sink.units} parts, the first is number {missing[0]}"
                raise ArtefactError(
                    f"the checkpoint has no weights, or not all, for {of}",
                    where=sink.name,
                    hint="compare the checkpoint's index with config.json (number of experts, shapes)",
                )


def require_loaded(model: Any, loaded: set[str], sunk: Iterator[str]) -> None:  # noqa: ANN401
    """Every parameter has its weights.

    Raises:
        ArtefactError: one has not; the model would compute with whatever was in memory.
    """
    known = loaded | set(sunk)
    missing = [name for name, _ in model.named_parameters() if name not in known and not _OPTIONAL.search(name)]
    if loaded and missing:
        raise ArtefactError(
            f"{len(missing)} parameters found no weights in the checkpoint",
            where=missing[0],
            hint="check that config.json and the weights belong together",
        )
