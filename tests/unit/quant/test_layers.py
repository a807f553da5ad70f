from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from tests.fakes import checkpoints as fake
from tests.fakes import models
from vllm_spark import proc
from vllm_spark.cli.main import main
from vllm_spark.errors import ConfigError
from vllm_spark.runtime.quant.policy import DEFAULT, load_policy
from vllm_spark.runtime.quant.source import find_sources
from vllm_spark.runtime.quant.table import layer_table
from vllm_spark.runtime.stream.headers import scan

if TYPE_CHECKING:
    from pathlib import Path

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["model.layers.0.mlp.gate"]}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    fake.write_moe(tmp_path, 2, 3, 512, 256)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": FP8, "tie_word_embeddings": False}))
    return tmp_path


def test_groups_count_layers_and_experts_together(model: Path) -> None:
    rows = {row.group: row for row in layer_table(find_sources(scan(model), {}).values(), DEFAULT)}
    gate = rows["model.layers.*.mlp.experts.*.gate_proj"]
    assert (gate.count, gate.shape, gate.dtype, gate.scheme) == (6, (256, 512), "F8_E4M3/block", "nvfp4")
    assert gate.bytes == 6 * 256 * 512 * 4.5 / 8
    assert gate.source_bytes == 6 * (256 * 512 + 2 * 4 * 4)
    assert rows["model.layers.*.self_attn.o_proj"].scheme == "fp8"
    assert rows["model.layers.*.mlp.gate"].scheme == "bf16"
    assert rows["model.layers.*.input_layernorm"].scheme == "-"
    assert rows["model.embed_tokens"].scheme == "-"
    assert rows["lm_head"].scheme == "fp8"


def test_a_tied_head_stays_as_the_embedding_is(model: Path) -> None:
    rows = {r.group: r for r in layer_table(find_sources(scan(model), {}).values(), DEFAULT, tied=True)}
    assert rows["lm_head"].scheme == "bf16"


def test_the_sum_of_all_rows_is_the_checkpoint(model: Path) -> None:
    found = scan(model)
    rows = layer_table(find_sources(found, {}).values(), load_policy("bf16"))
    assert sum(row.source_bytes for row in rows) == found.nbytes


@pytest.mark.parametrize("policy", [[], ["--policy", "mxfp4"]])
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_the_verb_prints_table_sizes_and_peak(
    model: Path, capsys: pytest.CaptureFixture[str], policy: list[str], ranks: str
) -> None:
    assert main(["layers", str(model), *policy, "--tp", ranks]) == 0
    out = capsys.readouterr().out
    assert "model.layers.*.mlp.experts.*.down_proj" in out
    assert ("mxfp4" if policy else "nvfp4") in out
    assert "GiB loaded" in out
    assert "MiB above the final size" in out


@pytest.mark.parametrize("argv", [["missing"], [".", "--tp", "0"]])
def test_wrong_arguments_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers", *argv]) == ConfigError.exit_code
    assert "error:" in capsys.readouterr().err


def test_the_verb_needs_neither_torch_nor_vllm(model: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['vllm'] = None\n"
        f"from vllm_spark.cli.main import main; sys.exit(main(['layers', {str(model)!r}]))"
    )
    assert "lm_head" in proc.run([sys.executable, "-c", code]).text


def test_errors_are_measured_on_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = (torch.randn(256, 256, generator=torch.Generator().manual_seed(0)) * 0.02).to(torch.bfloat16)
    codes, scale = models.block_fp8(weight)
    name = "model.layers.0.mlp.{}.weight"
    tensors = {name.format("up_proj"): weight, name.format("down_proj"): codes}
    save_file({**tensors, name.format("down_proj") + "_scale_inv": scale}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert main(["layers", str(tmp_path), "--error"]) == 0
    errors = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if line.startswith("model.")]
    assert len(errors) == 2
    assert all(7 < error < 10 for error in errors)  # NVFP4 with searched scales on a normal distribution: 8.4 %
