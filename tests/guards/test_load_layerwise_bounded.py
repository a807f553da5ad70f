"""Guards of load/layerwise-bounded: nothing waits for the end of loading, and memory goes back after each layer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark import proc

pytestmark = pytest.mark.slow  # each imports vLLM anew

# Two experts of 24 x 48, padded to 32 x 64 as Marlin's tiles would have it, loaded by upstream's own machinery.
PROGRAM = """
import types, torch
import vllm.utils.mem_utils as mem
released = []
mem.release_device_memory_under_pressure = lambda device: released.append(device.type)
from vllm.model_executor.layers.quantization.online.moe_base import OnlineMoEMethodBase
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

class Method(OnlineMoEMethodBase):
    def __init__(self):
        self.moe = types.SimpleNamespace(w13_num_shards=2, has_bias=False, hidden_dim_unpadded=48,
                                         intermediate_size_per_partition_unpadded=24)
        self.requantization_source = None
    def get_fused_moe_quant_config(self, layer): return None
    def process_weights_after_loading(self, layer): processed.append(float(layer.w13_weight.sum()))

def loader(param, loaded_weight, expert, row):
    rows, columns = loaded_weight.shape
    param.data[expert][row:row + rows, :columns].copy_(loaded_weight)

processed = []
layer = torch.nn.Module()
layer.quant_method = Method()
layer.quant_config = types.SimpleNamespace(online_quantization_config=None)
layer.quant_method.create_weights(layer, 2, 64, 32, torch.bfloat16, weight_loader=loader)
get_layerwise_info(layer).restore_device = torch.device("cpu")
for expert in range(2):
    for name, row, shape in (("w13", 0, (24, 48)), ("w13", 32, (24, 48)), ("w2", 0, (48, 24))):
        param = getattr(layer, name + "_weight")
        param.weight_loader(param, torch.ones(shape, dtype=torch.bfloat16), expert, row)
print("result", len(processed), len(released))
"""


def result(tree: Path, vllm_python: Callable[..., proc.Finished]) -> tuple[int, int]:
    done = vllm_python(tree, PROGRAM)
    assert done.status == 0, done.output
    processed, released = done.text.rpartition("result ")[2].split()
    return int(processed), int(released)


def test_a_padded_layer_is_processed_when_its_last_weight_arrives(
    tree: Path, vllm_python: Callable[..., proc.Finished]
) -> None:
    assert result(tree, vllm_python)[0] == 1


def test_device_memory_is_given_back_after_each_layer(tree: Path, vllm_python: Callable[..., proc.Finished]) -> None:
    assert result(tree, vllm_python)[1] == 1
