"""Loads from kept weights where there are any, keeps them where there are none.

What a layer's sinks made is stored under the layer's and parameter's name; everything else (norms, embeddings,
routers, layers in 16 bits) is read from the checkpoint both times. A damaged entry is named, deleted and made
again from the checkpoint in the same start.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch

from vllm_spark import console
from vllm_spark.errors import ArtefactError, IntegrityError, ResourceError
from vllm_spark.runtime.quant import cache
from vllm_spark.runtime.quant.cachewriter import Item, Writer
from vllm_spark.runtime.stream.dequant import as_tensor
from vllm_spark.runtime.stream.load import Load, require_loaded
from vllm_spark.runtime.stream.plan import Limits, make_plan
from vllm_spark.runtime.stream.reader import Reader
from vllm_spark.runtime.stream.weights import Mover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from vllm_spark.runtime.quant.policy import Policy
    from vllm_spark.runtime.quant.source import Source
    from vllm_spark.runtime.stream.headers import Checkpoint
    from vllm_spark.runtime.stream.options import Options

__all__ = ["load_or_resume"]

PIECE = 32 << 20
_DTYPES = {torch.int32: "I32", torch.uint8: "U8", torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
OPS = 1  # raised whenever a quantiser gives other bytes for the same weights


def load_or_resume(
    model: Any,  # noqa: ANN401 - any vLLM model
    checkpoint: Checkpoint,
    sources: Mapping[str, Source] | None,
    options: Options,
    *,
    policy: Policy | None,
    dtype: torch.dtype,
    device: torch.device,
    ranks: tuple[int, ...],
) -> Load:
    """Load `model`, from kept weights if there are whole ones.

    Args:
        model: built by vLLM, without weights.
        checkpoint: scanned.
        sources: how its weights are stored; None when vLLM reads the format itself.
        options: of the load.
        policy: which decides the schemes; None without `--quantization spark`.
        dtype: of the model.
        device: of the model.
        ranks: size and place in each group that shares the weights, one after the other.

    Returns:
        The load, for its summary.
    """
    load = Load(checkpoint, sources, options, device=device, dtype=dtype, sharded=max(ranks[::2]) > 1)
    layers = _layers(model)
    if not options.cache or not layers or policy is None:
        _checked(load, model, frozenset())
        return load
    inputs = {
        "checkpoint": checkpoint.digest(),
        "policy": policy.digest(),
        "ranks": list(ranks),
        "device": _device_kind(device),
        "dtype": str(dtype),
        "ops": OPS,
        "model": str(checkpoint.folder),
    }
    folder = cache.root()
    entry = cache.find(folder, cache.entry_key(inputs))
    if entry is not None and _resumed(load, model, layers, entry):
        return load
    _load_and_keep(load, model, layers, folder, inputs)
    return load


def _device_kind(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return "cuda {}.{}".format(*torch.cuda.get_device_capability(device))


def _layers(model: Any) -> dict[str, Any]:  # noqa: ANN401
    return {name: module for name, module in model.named_modules() if getattr(module, "spark_sinks", None)}


def _checked(load: Load, model: Any, skip: frozenset[str]) -> None:  # noqa: ANN401
    loaded = load.run(model, skip=skip)
    filled = [f"{name}.{param}" for name, param in _parameters(_layers(model))]
    require_loaded(model, loaded, iter(filled))


def _parameters(layers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every parameter of layers that quantise on arrival: none of them is any other loader's business."""
    for name, layer in layers.items():
        for sink in layer.spark_sinks:
            yield name, sink.name.rpartition(".")[2]
        for kept in layer.spark_kept:
            yield name, kept


def _load_and_keep(
    load: Load,
    model: Any,  # noqa: ANN401
    layers: Mapping[str, Any],
    folder: Path,
    inputs: Mapping[str, object],
) -> None:
    size = sum(getattr(layer, kept).nbytes for layer in layers.values() for kept in layer.spark_kept)
    writer = Writer(folder, inputs, needed=size, limit=load.options.cache_gb << 30)
    try:
        for name, layer in layers.items():
            _when_whole(layer, _adder(writer, name, layer))
        _checked(load, model, frozenset())
        writer.finish(_consumed(load))
    except BaseException:
        writer.abort()
        raise


def _consumed(load: Load) -> set[str]:
    scales = {key: source.scale for key, source in (load.sources or {}).items()}
    return load.sunk | {scale.key for key in load.sunk if (scale := scales.get(key)) is not None}


def _when_whole(layer: Any, done: Callable[[], None]) -> None:  # noqa: ANN401
    left = len(layer.spark_sinks)

    def one() -> None:
        nonlocal left
        left -= 1
        if not left:
            done()

    for sink in layer.spark_sinks:
        sink.on_whole = one


def _adder(writer: Writer, name: str, layer: Any) -> Callable[[], None]:  # noqa: ANN401
    def add() -> None:
        event = _recorded() if getattr(layer, layer.spark_kept[0]).is_cuda else None
        for kept in layer.spark_kept:
            for item in _items(f"{name}|{kept}", getattr(layer, kept).data, event):
                writer.add(item)

    return add


def _recorded() -> Any:  # noqa: ANN401 - a CUDA event
    """Marks the point up to which the device has to be before finished weights may be read."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _items(key: str, tensor: torch.Tensor, event: Any) -> Iterator[Item]:  # noqa: ANN401 - a CUDA event or None
    flat = _bytes(tensor)
    for number, at in enumerate(range(0, flat.numel(), PIECE)):
        part = flat[at : at + PIECE]

        def data(part: torch.Tensor = part) -> Iterator[memoryview]:
            if event is not None:
                event.synchronize()
            host = part.cpu() if part.is_cuda else part
            yield memoryview(host.numpy())  # type: ignore[arg-type]

        yield Item(f"{key}#{number}", "U8", (part.numel(),), part.numel(), data)


def _resumed(load: Load, model: Any, layers: Mapping[str, Any], entry: cache.Entry) -> bool:  # noqa: ANN401
    """Fill the layers from `entry`; False when it is damaged or does not fit, after which it is gone."""
    start = time.monotonic()
    try:
        _fill(load, layers, entry)
    except (ArtefactError, IntegrityError, ResourceError) as err:
        console.warn(f"kept weights are damaged and are made again: {err}")
        cache.remove(entry)
        for layer in layers.values():
            for sink in layer.spark_sinks:
                sink.finished.clear()
        return False
    load.times["kept weights"] = time.monotonic() - start
    _checked(load, model, frozenset(entry.manifest["consumed"]))
    return True


def _fill(load: Load, layers: Mapping[str, Any], entry: cache.Entry) -> None:
    found = entry.checkpoint()
    targets = {
        f"{name}|{kept}": getattr(layer, kept).data for name, layer in layers.items() for kept in layer.spark_kept
    }
    wanted = {f"{key}#{n}" for key, target in targets.items() for n in range(math.ceil(target.nbytes / PIECE))}
    if wanted != found.tensors.keys():
        raise IntegrityError(
            "it holds other layers than this model has", where=str(entry.path), hint="it is made again"
        )
    plan = make_plan(found, Limits(load.options.staging_mb << 20))
    with Reader(
        plan,
        found,
        threads=load.options.threads,
        direct=load.options.direct,
        check=lambda block, view: entry.check(block.tensor.key, view),
    ) as reader:
        unpin = Mover(load.device).pin(reader.ring.memory)
        try:
            for _, block, view in reader:
                key, _, number = block.tensor.key.rpartition("#")
                at = int(number) * PIECE + block.first
                _bytes(targets[key])[at : at + block.stop - block.start].copy_(as_tensor(block, view))
        finally:
            unpin()
        load.nbytes += reader.stats.nbytes
    for layer in layers.values():
        for sink in layer.spark_sinks:
            sink.finished.update(range(sink.units))
