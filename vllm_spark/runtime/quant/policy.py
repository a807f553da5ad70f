"""Which scheme each layer gets: a default and ordered rules, the first match wins.

A rule's pattern is a shell pattern over the whole module name (`*.o_proj`), or, after `re:`, a regular
expression that must match from its beginning. Names are the checkpoint's own, so that a rule means the same in
`vllm-spark layers`, which knows no vLLM, and in the loader.
"""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import json
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["DEFAULT", "SCHEMES", "Policy", "Rule", "bits", "load_policy", "parse_policy"]

# Bits per weight with its scales: E2M1 with one E4M3 scale per 16; NF4 with a 16-bit scale per 64; E2M1 with one
# E8M0 per 32; E4M3 with one scale per row (not counted: below 0.1 %).
SCHEMES: Mapping[str, float] = {"nvfp4": 4.5, "nf4": 4.25, "mxfp4": 4.25, "fp8": 8.0, "bf16": 16.0}


def bits(scheme: str) -> float:
    """Bits one weight takes under `scheme`, scales included."""
    return SCHEMES[scheme]


@dataclass(frozen=True, slots=True)
class Rule:
    """Layers whose name matches `pattern` get `scheme`."""

    pattern: str
    scheme: str
    _match: Callable[[str], object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_scheme(self.scheme, self.pattern)
        text = self.pattern[3:] if self.pattern.startswith("re:") else fnmatch.translate(self.pattern)
        try:
            match = re.compile(text).match
        except re.error as err:
            raise ConfigError(
                f"no valid regular expression ({err})", where=self.pattern, hint="correct the rule"
            ) from err
        object.__setattr__(self, "_match", match)

    def matches(self, name: str) -> bool:
        """Does the rule apply to module `name`?"""
        return self._match(name) is not None


@dataclass(frozen=True, slots=True)
class Policy:
    """A default scheme, ordered rules, and whether 4-bit scales are searched for least error."""

    default: str = "bf16"
    rules: tuple[Rule, ...] = ()
    search: bool = True
    exclusions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_scheme(self.default, "default")

    def scheme(self, name: str) -> str:
        """The scheme of module `name`; what the checkpoint's makers left alone stays as it is."""
        if any(_excluded(pattern, name) for pattern in self.exclusions):
            return "bf16"
        return next((rule.scheme for rule in self.rules if rule.matches(name)), self.default)

    def common(self, names: Iterable[str], layer: str) -> str:
        """The one scheme of the parts that vLLM fuses into `layer`.

        Raises:
            ConfigError: the rules want different schemes for them.
        """
        found = {name: self.scheme(name) for name in names}
        schemes = set(found.values())
        if len(schemes) > 1:
            pairs = ", ".join(f"{name.rpartition('.')[2]} {scheme}" for name, scheme in sorted(found.items())[:4])
            raise ConfigError(
                f"its parts are one tensor in vLLM but get different schemes ({pairs})",
                where=layer,
                hint="give them one scheme in the policy",
            )
        return schemes.pop()

    def excluding(self, patterns: Iterable[str]) -> Policy:
        """The same policy that also leaves alone what the checkpoint excludes."""
        return replace(self, exclusions=(*self.exclusions, *patterns))

    def digest(self) -> str:
        """SHA-256 of everything that changes a quantised weight."""
        rules = [[rule.pattern, rule.scheme] for rule in self.rules]
        text = json.dumps([self.default, rules, self.search, sorted(self.exclusions)])
        return hashlib.sha256(text.encode()).hexdigest()


def _excluded(pattern: str, name: str) -> bool:
    """Exclusion lists name modules, subtrees, shell patterns or `re:` expressions, each producer in its way."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    if any(mark in pattern for mark in "*?["):
        return fnmatch.fnmatchcase(name, pattern)
    return name == pattern or name.startswith(pattern + ".") or name.endswith("." + pattern)


def _check_scheme(scheme: object, where: str) -> None:
    if scheme not in SCHEMES:
        near = difflib.get_close_matches(str(scheme), SCHEMES, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(SCHEMES)}"
        raise ConfigError(f"unknown scheme {scheme!r}", where=where, hint=hint)


def _rules(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple(Rule(pattern, scheme) for pattern, scheme in pairs)


# The reasons are in docs/loading.md. What no rule names stays in 16 bits.
DEFAULT = Policy(
    rules=_rules(
        (r"re:.*\b(vision|visual|audio|multi_modal|mm_|embed_vision|embed_audio|mtp)", "bf16"),
        (r"re:.*(\.|_)(gate|router|shared_expert_gate)(\.proj|\.layer)?$", "bf16"),
        ("*embed_tokens*", "bf16"),
        ("lm_head", "fp8"),
        ("*.lm_head", "fp8"),
        (r"re:.*\.(self_attn|attn|attention|linear_attn)\.", "fp8"),
        (r"re:.*\.mixer\.([qkvo]_proj|in_proj|out_proj)$", "fp8"),
        ("*.o_proj", "fp8"),
        (r"re:.*\.(experts|shared_experts?|mlp|feed_forward|block_sparse_moe)(\.|$)", "nvfp4"),
        (r"re:.*\.mixer\.(up_proj|down_proj|gate_proj)$", "nvfp4"),
    )
)
_KEYS = ("base", "default", "rules", "search")


def _pair(item: object, where: str) -> tuple[str, str]:
    if isinstance(item, dict) and item.keys() == {"match", "scheme"}:
        item = [item["match"], item["scheme"]]
    if isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str):
        return item[0], item[1]
    raise ConfigError(f"{item!r} is no rule", where=where, hint='write {match = "*.o_proj", scheme = "fp8"}')


def parse_policy(given: Mapping[str, Any], where: str = "policy") -> Policy:
    """A policy from its plain form.

    Args:
        given: `default` (scheme), `rules` (tables of `match` and `scheme`, or a map from pattern to scheme, in
            order), `search` (bool), and `base = "default"` to put the shipped rules after the given ones.
        where: for messages.

    Raises:
        ConfigError: an unknown key, scheme or malformed rule.
    """
    for key in given:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            raise ConfigError(
                f"unknown key {key!r}",
                where=where,
                hint=f"did you mean {near[0]}?" if near else f"keys are {', '.join(_KEYS)}",
            )
    base, listed, search = given.get("base", "none"), given.get("rules", ()), given.get("search", True)
    if base not in ("none", "default") or not isinstance(search, bool):
        raise ConfigError('base is "default" or "none", search is true or false', where=where, hint="correct the value")
    if not isinstance(listed, list | tuple | dict):
        raise ConfigError(
            "rules is neither a list nor a table", where=where, hint="write [[rules]] with match and scheme"
        )
    pairs = list(listed.items()) if isinstance(listed, dict) else [_pair(item, where) for item in listed]
    start = DEFAULT if base == "default" else Policy()
    return Policy(given.get("default", start.default), _rules(*pairs) + start.rules, search)


def load_policy(given: object) -> Policy:
    """The policy that a user asked for.

    Args:
        given: None (the shipped default), a scheme's name (everything in it but routers, embeddings and
            lm_head), a path to a TOML or JSON file, or a table as `parse_policy` takes it.

    Raises:
        ConfigError: it is none of these, or malformed.
    """
    if given is None or given == "default":
        return DEFAULT
    if isinstance(given, dict):
        return parse_policy(given)
    if not isinstance(given, str):
        raise ConfigError(f"{given!r} is no policy", where="policy", hint="give a file, a scheme or a table")
    if given in SCHEMES:
        keep = DEFAULT.rules[:3]
        return Policy(given, (*keep, *_rules(("lm_head", "bf16"), ("*.lm_head", "bf16"))))
    return _from_file(Path(given))


def _from_file(path: Path) -> Policy:
    try:
        text = path.read_text()
        value = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as err:
        hint = f"give a file, a table, or one of {', '.join(SCHEMES)}"
        raise ConfigError(f"cannot be read ({err.strerror})", where=str(path), hint=hint) from err
    except ValueError as err:
        raise ConfigError(
            f"not valid {path.suffix or 'JSON'} ({err})", where=str(path), hint="correct the file"
        ) from err
    if not isinstance(value, dict):
        raise ConfigError("not a table", where=str(path), hint="see docs/loading.md")
    return parse_policy(value, str(path))
