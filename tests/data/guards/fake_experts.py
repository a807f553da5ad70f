"""Experts with fake weights, made of vLLM's own parts on the CPU. For the scripts beside it, in vLLM's Python.

Real: MoERunner, RoutedExperts with its parameters and weight loaders, the quantisation methods' `create_weights`.
Left out: the choice of a kernel, which needs a GPU.
"""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from vllm.config import VllmConfig, set_current_vllm_config  # type: ignore[import-not-found]
from vllm.distributed import (  # type: ignore[import-not-found]
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.model_executor.layers.fused_moe.activation import MoEActivation  # type: ignore[import-not-found]
from vllm.model_executor.layers.fused_moe.config import (  # type: ignore[import-not-found]
    FusedMoEConfig,
    FusedMoEParallelConfig,
    RoutingMethodType,
)
from vllm.model_executor.layers.fused_moe.expert_map_manager import (  # type: ignore[import-not-found]
    ExpertMapManager,
)
from vllm.model_executor.layers.fused_moe.oracle.unquantized import (  # type: ignore[import-not-found]
    UnquantizedMoeBackend,
)
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts  # type: ignore[import-not-found]
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner  # type: ignore[import-not-found]
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (  # type: ignore[import-not-found]
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (  # type: ignore[import-not-found]
    compressed_tensors_moe_w4a4_nvfp4 as ct_nvfp4,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_wna16 as ct_wna16,
)
from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4FusedMoE  # type: ignore[import-not-found]
from vllm.platforms import current_platform  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Callable

    Weights = list[tuple[str, torch.Tensor]]

EXPERTS, HIDDEN, INNER = 4, 128, 64
SCALAR, PAIR = 0, -1
# Scheme -> suffix of a checkpoint tensor -> its dtype, and how many of the matrix's columns one element stands for.
TENSORS: dict[str, dict[str, tuple[torch.dtype, int]]] = {
    "bf16": {"weight": (torch.bfloat16, 1)},
    "modelopt": {
        "weight": (torch.uint8, 2),
        "weight_scale": (torch.float8_e4m3fn, 16),
        "weight_scale_2": (torch.float32, SCALAR),
        "input_scale": (torch.float32, SCALAR),
    },
    "ct-nvfp4": {
        "weight_packed": (torch.uint8, 2),
        "weight_scale": (torch.float8_e4m3fn, 16),
        "weight_global_scale": (torch.float32, SCALAR),
        "input_global_scale": (torch.float32, SCALAR),
    },
    "ct-int4": {
        "weight_packed": (torch.int32, 8),
        "weight_scale": (torch.bfloat16, 32),
        "weight_shape": (torch.int64, PAIR),
    },
}
SHAPES = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}


def shape(per: int, rows: int, columns: int) -> tuple[int, ...]:
    """The shape of a tensor that goes with a [rows, columns] matrix."""
    return () if per == SCALAR else (2,) if per == PAIR else (rows, columns // per)


def random(dtype: torch.dtype, shape: tuple[int, ...], seed: str) -> torch.Tensor:
    """A tensor whose content depends on `seed` alone."""
    generator = torch.Generator().manual_seed(sum(ord(char) * 31**i for i, char in enumerate(seed)) % 2**31)
    whole = torch.randint(1, 100, shape, generator=generator)
    return whole.to(torch.float32).to(dtype) if dtype.is_floating_point else whole.to(dtype)


def method(scheme: str, moe: FusedMoEConfig) -> Any:
    """The quantisation method of a scheme, without the kernel that it would choose on a GPU."""
    facts: dict[str, dict[str, Any]] = {
        "bf16": {"unquantized_backend": UnquantizedMoeBackend.TRITON},
        "modelopt": {
            "quant_config": SimpleNamespace(
                is_checkpoint_nvfp4_serialized=True, group_size=16, get_name=lambda: "modelopt_fp4"
            ),
            "use_global_sf": False,
        },
        "ct-nvfp4": {"group_size": 16, "use_global_sf": False},
        "ct-int4": {
            "strategy": "group",
            "group_size": 32,
            "symmetric": True,
            "num_bits": 4,
            "packed_factor": 8,
            "wna16_moe_backend": None,
        },
    }
    classes = {
        "bf16": UnquantizedFusedMoEMethod,
        "modelopt": ModelOptNvFp4FusedMoE,
        "ct-nvfp4": ct_nvfp4.CompressedTensorsW4A4Nvfp4MoEMethod,
        "ct-int4": ct_wna16.CompressedTensorsWNA16MoEMethod,
    }
    made = classes[scheme].__new__(classes[scheme])
    if isinstance(made, torch.nn.Module):
        torch.nn.Module.__init__(made)
    for name, value in {"moe": moe, "moe_quant_config": None, "moe_kernel": None, **facts[scheme]}.items():
        setattr(made, name, value)
    return made


def config(moe: dict[str, Any], manager: Any, parallel: Any, gated: bool) -> Any:
    """The layer's configuration; layers without a gate ask for a GPU's platform."""
    with mock.patch.object(type(current_platform), "is_cuda_alike", return_value=True):
        return FusedMoEConfig(
            experts_per_token=1,
            hidden_dim=HIDDEN,
            intermediate_size=INNER,
            num_local_experts=manager.local_num_experts,
            num_logical_experts=EXPERTS,
            activation=MoEActivation.SILU if gated else MoEActivation.RELU2_NO_MUL,
            device="cpu",
            routing_method=RoutingMethodType.Renormalize,
            moe_parallel_config=parallel,
            in_dtype=torch.bfloat16,
            **moe,
        )


def experts(scheme: str, name: str, *, ranks: int = 1, rank: int = 0, spare: int = 0, gated: bool = True) -> Any:
    """RoutedExperts of one layer: on `rank` of an expert-parallel group, with `spare` EPLB replicas."""
    parallel = FusedMoEParallelConfig.make_no_parallel()
    parallel.use_ep, parallel.ep_size, parallel.ep_rank = ranks > 1, ranks, rank
    manager = ExpertMapManager(
        max_num_batched_tokens=8,
        top_k=1,
        global_num_experts=EXPERTS + spare,
        num_redundant_experts=spare,
        num_expert_group=None,
        moe_parallel_config=parallel,
        placement_strategy="linear",
        enable_eplb=spare > 0,
    )
    moe = config({"num_experts": EXPERTS + spare}, manager, parallel, gated)
    names = ("gate_proj", "down_proj", "up_proj") if gated else ("up_proj", "down_proj", None)
    with mock.patch.object(RoutedExperts, "_get_quant_method", return_value=method(scheme, moe)):
        return RoutedExperts(name, torch.bfloat16, moe, None, manager, *names)


def runner(routed: Any) -> Any:
    """The module that a model calls `experts`."""
    made = MoERunner.__new__(MoERunner)
    torch.nn.Module.__init__(made)
    made.routed_experts = routed
    return made


def per_expert(scheme: str, form: str = "experts.{n}.{proj}.{suffix}") -> Weights:
    """One tensor per expert, projection and suffix; content goes by what it is, not by its name."""
    return [
        (form.format(n=n, proj=proj, suffix=suffix), random(dtype, shape(per, *SHAPES[proj]), f"{n} {proj} {suffix}"))
        for n in range(EXPERTS)
        for proj in SHAPES
        for suffix, (dtype, per) in TENSORS[scheme].items()
    ]


def fused(scheme: str, form: str) -> Weights:
    """The same content with all experts of gate and up, and of down, in one tensor each."""
    flat = dict(per_expert(scheme))

    def whole(proj: str, suffix: str) -> torch.Tensor:
        return torch.stack([flat[f"experts.{n}.{proj}.{suffix}"] for n in range(EXPERTS)])

    made: Weights = []
    for suffix in TENSORS[scheme]:
        gate, up = whole("gate_proj", suffix), whole("up_proj", suffix)
        both = torch.cat([gate, up], 1) if gate.dim() > 1 else torch.stack([gate, up], 1)
        made.append((form.format(proj="gate_up_proj", suffix=suffix), both))
        made.append((form.format(proj="down_proj", suffix=suffix), whole("down_proj", suffix)))
    return made


def state(module: Any) -> dict[str, list[int]]:
    """Every parameter's bytes."""
    return {
        name: param.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
        for name, param in module.named_parameters()
    }


def load(make: Callable[[], Any], weights: Weights, fill: int) -> tuple[Any, str]:
    """A fresh module with every byte `fill`, loaded; and the error that ended it, if one did."""
    module = make()
    for param in module.parameters():
        param.data.view(torch.uint8).fill_(fill)
    try:
        set(module.load_weights(weights))
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as err:
        return module, f"{type(err).__name__}: {err}"
    return module, ""


def join_groups() -> None:
    """Be a process group of one, as upstream's parameters ask for their rank."""
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{folder}/meeting", 0, "gloo")
        initialize_model_parallel()
