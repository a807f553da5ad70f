"""The rules of the series. Each documents itself; docs/series.md is generated from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_spark.distro.series.rules import listing, text, tree
from vllm_spark.distro.series.rules.base import Context, Rule, Violation
from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RULES", "Context", "Rule", "Violation", "check", "get", "table"]

RULES: tuple[type[Rule], ...] = (
    listing.Listed,
    listing.Once,
    text.Trailers,
    text.Why,
    text.GuardExists,
    tree.Exact,
    tree.Canonical,
    tree.Owner,
    text.CleanText,
    listing.Needs,
    listing.Budget,
)


def check(context: Context) -> Iterator[Violation]:
    """Every violation, rule by rule."""
    for rule in RULES:
        yield from rule().check(context)


def get(name: str) -> type[Rule]:
    """The rule of that id.

    Raises:
        ConfigError: there is none.
    """
    found = next((rule for rule in RULES if rule.id == name.upper()), None)
    if found is None:
        hint = f"one of {', '.join(rule.id for rule in RULES)}"
        raise ConfigError("no such rule", where=name, hint=hint)
    return found


def table() -> str:
    """The rules as a Markdown table, for docs/series.md."""
    rows = [f"| {rule.id} | {rule.title()} |" for rule in RULES]
    return "\n".join(["| rule | what it demands |", "|---|---|", *rows]) + "\n"
