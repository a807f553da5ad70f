"""How a checkpoint stores its weights, found from the headers and checked against its configuration.

Known: BF16, FP16 and FP32; FP8 (E4M3) with one scale per 128 x 128 block (`weight_scale_inv`), per tensor or per
output channel (`weight_scale`, as compressed-tensors and ModelOpt write it). Anything else is refused with what
it would need, because a weight that is read in the wrong format is a wrong model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.stream.headers import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.runtime.stream.headers import Checkpoint, Tensor

__all__ = ["Source", "exclusions", "find_sources", "quantization_config", "read_config"]

FLOATS = ("BF16", "F16", "F32")
_SUFFIXES = ("_scale_inv", "_scale")
_IGNORED = ("input_scale", "input_global_scale", "k_scale", "v_scale", "q_scale", "kv_scale", "weight_shape")


@dataclass(frozen=True, slots=True)
class Source:
    """One weight: its tensor, its scale's tensor, and how they belong together.

    `kind` is plain, tensor, channel or block; `block` are rows and columns that share a scale.
    """

    weight: Tensor
    kind: str
    scale: Tensor | None = None
    block: tuple[int, int] = (0, 0)


def read_config(folder: Path) -> dict[str, Any]:
    """The checkpoint's config.json.

    Raises:
        ConfigError: it is missing or no JSON object.
    """
    path = folder / "config.json"
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as err:
        raise ConfigError(f"cannot be read ({err})", where=str(path), hint="give the folder of a model") from err
    if not isinstance(value, dict):
        raise ConfigError("not a JSON object", where=str(path), hint="give the folder of a model")
    return value


def quantization_config(config: dict[str, Any]) -> dict[str, Any]:
    """Its quantisation section, wherever this producer puts it; empty when there is none."""
    for holder in (config, config.get("text_config") or {}):
        for key in ("quantization_config", "compression_config"):
            if isinstance(holder.get(key), dict):
                return dict(holder[key])
    return {}


def exclusions(quant: dict[str, Any]) -> tuple[str, ...]:
    """Modules that the makers of the checkpoint left in 16 bits."""
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers"):
        if isinstance(quant.get(key), list):
            return tuple(str(item) for item in quant[key])
    return ()


def _refuse(what: str, folder: Path, need: str) -> ConfigError:
    return ConfigError(f"{what} cannot be requantised", where=str(folder / "config.json"), hint=need)


def _check_method(quant: dict[str, Any], folder: Path) -> None:
    """Refuse what is no FP8 by what the configuration says, before the tensors are looked at."""
    method = str(quant.get("quant_method", "")).lower()
    already = "start it without --quantization spark; vLLM runs the format itself"
    if method in ("", "fp8"):
        return
    if method == "compressed-tensors":
        for name, group in (quant.get("config_groups") or {}).items():
            weights = group.get("weights") or {} if isinstance(group, dict) else {}
            if weights.get("type") != "float" or weights.get("num_bits") != 8:
                shape = f"{weights.get('num_bits')}-bit {weights.get('type')}"
                raise _refuse(f"compressed-tensors {name} ({shape} weights)", folder, already)
        return
    if method.startswith("modelopt"):
        inner = quant.get("quantization")
        algo = str(quant.get("quant_algo") or (inner.get("quant_algo") if isinstance(inner, dict) else "")).upper()
        if not algo.startswith("FP8"):
            raise _refuse(f"ModelOpt {algo or 'of unknown kind'}", folder, already)
        return
    raise _refuse(f"the format {method!r}", folder, f"a reader for it in runtime/quant/source.py; or {already}")


def _scale_of(tensor: Tensor, checkpoint: Checkpoint) -> Tensor:
    for suffix in _SUFFIXES:
        found = checkpoint.tensors.get(tensor.key + suffix)
        if found is not None:
            return found
    raise CheckpointError(
        "an FP8 weight without weight_scale_inv or weight_scale", file=tensor.path, key=tensor.key, offset=tensor.start
    )


def _with_scale(tensor: Tensor, scale: Tensor, block: tuple[int, int]) -> Source:
    *_, rows, columns = tensor.shape
    outer = tensor.shape[:-2]
    if scale.dtype not in FLOATS:
        raise CheckpointError(f"a scale of type {scale.dtype}", file=scale.path, key=scale.key, offset=scale.start)
    if scale.shape in ((), (1,), outer, (*outer, 1), (*outer, 1, 1)):
        return Source(tensor, "tensor", scale)
    if scale.shape in ((*outer, rows), (*outer, rows, 1)):
        return Source(tensor, "channel", scale)
    wanted = (*outer, -(-rows // block[0]), -(-columns // block[1]))
    if scale.shape == wanted:
        return Source(tensor, "block", scale, block)
    raise CheckpointError(
        f"scale of shape {list(scale.shape)} fits no layout of a weight of shape {list(tensor.shape)}"
        f" (blocks of {block[0]} x {block[1]} would need {list(wanted)})",
        file=scale.path, key=scale.key, offset=scale.start,
    )  # fmt: skip


def _block_size(quant: dict[str, Any], folder: Path) -> tuple[int, int]:
    size = quant.get("weight_block_size")
    for group in (quant.get("config_groups") or {}).values():
        size = size or ((group.get("weights") or {}).get("block_structure"))
    if size is None:
        return (128, 128)
    if isinstance(size, list) and len(size) == 2 and all(type(item) is int and item > 0 for item in size):
        return size[0], size[1]
    raise ConfigError(f"weight_block_size {size!r} is not [rows, columns]", where=str(folder), hint="check config.json")


def find_sources(checkpoint: Checkpoint, config: dict[str, Any]) -> dict[str, Source]:
    """Every tensor that holds weights, by key; scales are inside their weight's entry.

    Raises:
        ConfigError: the configuration names a format that this cannot read.
        CheckpointError: a weight of unknown type, a scale that is missing, of the wrong shape or of no weight.
    """
    quant = quantization_config(config)
    _check_method(quant, checkpoint.folder)
    block = _block_size(quant, checkpoint.folder)
    tensors = checkpoint.tensors
    fp8 = {key: _scale_of(t, checkpoint) for key, t in tensors.items() if t.dtype == "F8_E4M3" and len(t.shape) >= 2}
    scales = {scale.key for scale in fp8.values()}
    out = {}
    for key, tensor in tensors.items():
        if key in scales or (key.endswith(_IGNORED) and tensor.dtype in FLOATS):
            continue
        if key in fp8:
            out[key] = _with_scale(tensor, fp8[key], block)
        elif tensor.dtype in FLOATS or (tensor.dtype in ("I32", "I64", "BOOL") and not _is_packed(tensor)):
            out[key] = Source(tensor, "plain")
        else:
            raise CheckpointError(
                f"weights of type {tensor.dtype} are not read; BF16, F16, F32 and F8_E4M3 are",
                file=tensor.path, key=key, offset=tensor.start,
            )  # fmt: skip
    _check_scales(checkpoint, scales)
    return out


def _is_packed(tensor: Tensor) -> bool:
    return tensor.key.endswith(("qweight", "weight_packed", "qzeros", "g_idx", ".weight"))


def _check_scales(checkpoint: Checkpoint, used: set[str]) -> None:
    for key, tensor in checkpoint.tensors.items():
        if key.endswith(("weight_scale", "weight_scale_inv")) and key not in used:
            raise CheckpointError(
                "a scale whose weight is missing or not FP8", file=tensor.path, key=key, offset=tensor.start
            )
