"""Run by a Python that has transformers: writes a tiny random model with a tokenizer.

usage: tiny_models.py {qwen3_moe|gemma4|nemotron_h} FOLDER
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

COMMON = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "max_position_embeddings": 512, "vocab_size": 320}
SIZES = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}


def tokenizer(folder: str) -> None:
    tk: Any = importlib.import_module("tokenizers")
    from_words: Any = importlib.import_module("transformers").PreTrainedTokenizerFast

    words = tk.Tokenizer(tk.models.BPE())
    words.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tk.decoders.ByteLevel()
    alphabet = tk.pre_tokenizers.ByteLevel.alphabet()
    trainer = tk.trainers.BpeTrainer(vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    words.train_from_iterator(["hello world"] * 9, trainer)
    marks = {"bos_token": "<s>", "eos_token": "</s>"}
    from_words(tokenizer_object=words, **marks).save_pretrained(folder)


def qwen3_moe(t: Any) -> Any:
    sizes = {"intermediate_size": 256, "moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2}
    config = t.Qwen3MoeConfig(**COMMON, **SIZES, **sizes, num_hidden_layers=2, tie_word_embeddings=False)
    return t.Qwen3MoeForCausalLM(config)


def gemma4(t: Any) -> Any:
    """Stacked experts beside a dense MLP in every layer, tied embeddings, a router with its own norm."""
    moe = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 128}
    per_layer = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 320}
    sizes = {"intermediate_size": 256, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    return t.Gemma4ForCausalLM(t.Gemma4TextConfig(**COMMON, **SIZES, **sizes, **moe, **per_layer))


def nemotron_h(t: Any) -> Any:
    """Experts without a gate (relu2) and a shared one, between a Mamba layer and an attention layer."""
    moe = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "n_shared_experts": 1}
    more = {"moe_shared_expert_intermediate_size": 128, "intermediate_size": 256}
    ssm = {"mamba_num_heads": 8, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2, "use_mamba_kernels": False}
    kinds = ["mamba", "moe", "attention", "moe"]
    return t.NemotronHForCausalLM(t.NemotronHConfig(**COMMON, **SIZES, **moe, **more, **ssm, layers_block_type=kinds))


def main() -> None:
    import torch

    transformers: Any = importlib.import_module("transformers")
    kind, folder = sys.argv[1:]
    torch.manual_seed(0)
    model = {"qwen3_moe": qwen3_moe, "gemma4": gemma4, "nemotron_h": nemotron_h}[kind](transformers)
    for param in model.parameters():  # spread the logits, so that greedy text does not hang on the last bit
        if param.dim() > 1:
            torch.nn.init.normal_(param, std=0.08)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer(folder)


if __name__ == "__main__":
    main()
