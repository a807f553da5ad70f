"""Checking a wheel against all rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.distro.wheel.expected import expected_for
from vllm_spark.distro.wheel.facts import WheelFacts, read_facts
from vllm_spark.distro.wheel.names import WheelName
from vllm_spark.distro.wheel.rules import RULES, Case

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from vllm_spark.distro.wheel.expected import ExpectedWheel

__all__ = ["Audit", "Violation", "audit", "check"]


@dataclass(frozen=True)
class Violation:
    """One line against one rule."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule} {self.message}"


@dataclass(frozen=True)
class Audit:
    """The outcome: what was read, and what is wrong with it."""

    facts: WheelFacts
    violations: tuple[Violation, ...]


def audit(
    path: Path,
    expectations: list[ExpectedWheel],
    *,
    patches: Collection[str] | None = None,
    original: Path | None = None,
) -> Audit:
    """Check `path` against every rule; all are run, so that one report has everything.

    Args:
        patches: names that the SBOM must list, exactly; None does not ask.
        original: the wheel that `path` was made from, for the proof that no kernel was lost.

    Raises:
        ArtefactError, IntegrityError: a file is no sound wheel at all.
        ConfigError: `expectations` have no entry for it.
    """
    expected = expected_for(WheelName.parse(path), expectations)
    facts = read_facts(path, expected.capability)
    before = read_facts(original, expected.capability) if original else None
    case = Case(facts, expected, None if patches is None else frozenset(patches), before)
    return Audit(facts, check(case))


def check(case: Case) -> tuple[Violation, ...]:
    """Run every rule on facts that are at hand."""
    return tuple(Violation(rule.id, line) for rule in RULES for line in rule.check(case))
