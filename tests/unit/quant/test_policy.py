from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_spark.errors import ConfigError
from vllm_spark.runtime.quant.policy import DEFAULT, SCHEMES, Policy, Rule, load_policy, parse_policy

if TYPE_CHECKING:
    from pathlib import Path

# Module names of released checkpoints, and what the shipped policy gives them.
NAMES = [
    ("model.layers.0.mlp.experts.7.gate_proj", "nvfp4"),  # Qwen3-MoE
    ("model.layers.0.mlp.experts.7.down_proj", "nvfp4"),
    ("model.language_model.layers.0.mlp.experts.gate_up_proj", "nvfp4"),  # Qwen3.5, fused
    ("model.layers.0.mlp.gate", "bf16"),
    ("model.layers.0.mlp.shared_expert.up_proj", "nvfp4"),
    ("model.layers.0.mlp.shared_expert_gate", "bf16"),
    ("model.layers.0.self_attn.q_proj", "fp8"),
    ("model.layers.0.self_attn.qkv_proj", "fp8"),
    ("model.layers.0.self_attn.o_proj", "fp8"),
    ("model.layers.0.linear_attn.in_proj_qkvz", "fp8"),
    ("model.layers.0.mlp.gate_proj", "nvfp4"),  # dense
    ("model.layers.0.mlp.gate_up_proj", "nvfp4"),
    ("model.language_model.layers.0.router.proj", "bf16"),  # Gemma-4
    ("model.language_model.layers.0.experts.3.down_proj", "nvfp4"),
    ("model.embed_vision.embedding_projection", "bf16"),
    ("model.vision_tower.encoder.layers.0.self_attn.q_proj", "bf16"),
    ("model.audio_tower.layers.0.feed_forward1.ffw_layer_1", "bf16"),
    ("visual.blocks.0.mlp.up_proj", "bf16"),
    ("backbone.layers.1.mixer.experts.5.up_proj", "nvfp4"),  # Nemotron-H
    ("backbone.layers.1.mixer.gate", "bf16"),
    ("backbone.layers.1.mixer.shared_experts.up_proj", "nvfp4"),
    ("backbone.layers.0.mixer.in_proj", "fp8"),
    ("backbone.layers.4.mixer.q_proj", "fp8"),
    ("backbone.layers.4.mixer.down_proj", "nvfp4"),
    ("model.layers.0.block_sparse_moe.experts.1.w1", "nvfp4"),  # Mixtral, MiniMax
    ("model.layers.0.block_sparse_moe.gate", "bf16"),
    ("model.embed_tokens", "bf16"),
    ("lm_head", "fp8"),
    ("language_model.lm_head", "fp8"),
    ("something.new.nobody.knows", "bf16"),
]


@pytest.mark.parametrize(("name", "scheme"), NAMES)
def test_the_shipped_policy(name: str, scheme: str) -> None:
    assert DEFAULT.scheme(name) == scheme


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_alone_covers_every_layer_but_routers_embeddings_and_the_head(scheme: str) -> None:
    policy = load_policy(scheme)
    for name, default in NAMES:
        untouched = "gate" in name.rpartition(".")[2] and default == "bf16"
        expected = "bf16" if untouched or (default == "bf16" and "nobody" not in name) or "lm_head" in name else scheme
        assert policy.scheme(name) == expected, name


def test_the_first_rule_that_matches_wins() -> None:
    policy = parse_policy({"default": "nf4", "rules": [["*.o_proj", "fp8"], ["*.0.*", "mxfp4"], ["*", "bf16"]]})
    assert [policy.scheme(n) for n in ("l.0.o_proj", "l.0.x", "l.1.x")] == ["fp8", "mxfp4", "bf16"]


def test_regular_expressions_match_from_the_beginning() -> None:
    policy = Policy("nf4", (Rule(r"re:model\.layers\.\d\.", "fp8"),))
    assert policy.scheme("model.layers.3.x") == "fp8"
    assert policy.scheme("model.layers.13.x") == "nf4"
    assert policy.scheme("a.model.layers.3.x") == "nf4"


@pytest.mark.parametrize(
    ("pattern", "name", "excluded"),
    [
        ("lm_head", "lm_head", True),
        ("lm_head", "language_model.lm_head", True),
        ("lm_head", "not_lm_head", False),
        ("model.layers.0", "model.layers.0.mlp.up_proj", True),
        ("model.layers.1", "model.layers.10.mlp.up_proj", False),
        ("*self_attn*", "model.layers.0.self_attn.q_proj", True),
        (r"re:.*mlp\.gate$", "model.layers.0.mlp.gate", True),
        (r"re:.*mlp\.gate$", "model.layers.0.mlp.gate_proj", False),
    ],
)
def test_what_the_checkpoint_excludes_stays_untouched(pattern: str, name: str, excluded: bool) -> None:
    assert (Policy("nf4").excluding([pattern]).scheme(name) == "bf16") is excluded


def test_fused_parts_need_one_scheme() -> None:
    policy = parse_policy({"default": "fp8", "rules": {"*.k_proj": "nvfp4"}})
    assert policy.common(["a.q_proj", "a.v_proj"], "a.qkv_proj") == "fp8"
    with pytest.raises(ConfigError, match="k_proj nvfp4"):
        policy.common(["a.q_proj", "a.k_proj"], "a.qkv_proj")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"defualt": "nf4"}, "did you mean default"),
        ({"default": "nvpf4"}, "did you mean nvfp4"),
        ({"default": 4}, "unknown scheme"),
        ({"rules": [["a"]]}, "no rule"),
        ({"rules": [{"match": "a", "sheme": "fp8"}]}, "no rule"),
        ({"rules": [["a", "int4"]]}, "unknown scheme"),
        ({"rules": [["re:(", "fp8"]]}, "regular expression"),
        ({"rules": 3}, "neither a list"),
        ({"base": "shipped"}, "base is"),
        ({"search": "yes"}, "base is"),
        ([1], "no policy"),
        ("no/such/file.toml", "cannot be read"),
    ],
)
def test_a_malformed_policy_says_what_is_wrong(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_policy(given)


TOML = """
base = "default"
search = false
[[rules]]
match = "*.down_proj"
scheme = "fp8"
"""


def test_files_and_tables_say_the_same(tmp_path: Path) -> None:
    toml, js = tmp_path / "p.toml", tmp_path / "p.json"
    toml.write_text(TOML)
    table = {"base": "default", "search": False, "rules": [{"match": "*.down_proj", "scheme": "fp8"}]}
    js.write_text(json.dumps(table))
    policy = load_policy(str(toml))
    assert policy == load_policy(str(js)) == load_policy(table)
    assert policy.scheme("model.layers.0.mlp.down_proj") == "fp8"
    assert policy.scheme("model.layers.0.mlp.up_proj") == "nvfp4"
    assert not policy.search


@pytest.mark.parametrize(
    ("name", "text"), [("p.toml", "a = ["), ("p.json", "{"), ("p.json", "[]"), ("p.toml", "\udce4")]
)
def test_broken_files_are_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError):
        load_policy(str(tmp_path / name))


def test_the_digest_follows_everything_that_changes_a_weight() -> None:
    base = Policy("nf4", (Rule("a", "fp8"), Rule("b", "bf16")))
    others = [
        Policy("mxfp4", base.rules),
        Policy("nf4", base.rules[::-1]),
        Policy("nf4", base.rules, search=False),
        base.excluding(["c"]),
    ]
    assert len({policy.digest() for policy in [base, *others]}) == 5
    assert base.digest() == Policy("nf4", (Rule("a", "fp8"), Rule("b", "bf16"))).digest()


@given(st.text(max_size=30), st.sampled_from(sorted(SCHEMES)), st.text(max_size=30))
def test_any_text_is_a_shell_pattern(pattern: str, scheme: str, name: str) -> None:
    rule = Rule("*" + pattern, scheme)
    assert rule.scheme == scheme
    assert isinstance(rule.matches(name), bool)
