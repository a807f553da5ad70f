"""What every rule of the series is: an id, its own documentation, and a check over the same facts."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from vllm_spark.distro.series.apply import Stack, push_all, stack
from vllm_spark.distro.series.export import render
from vllm_spark.distro.series.store import Series

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from vllm_spark.distro.series.apply import Outcome
    from vllm_spark.distro.series.patch import Patch
    from vllm_spark.distro.series.store import Folder
    from vllm_spark.distro.upstream.mirror import Mirror

__all__ = ["Context", "Rule", "Violation"]


@dataclass(frozen=True)
class Violation:
    """One breach: which rule, where, and what is wrong."""

    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.rule} {self.what}"


@dataclass(frozen=True)
class Applied:
    """What applying everything that is sound showed.

    Attributes:
        outcomes: one per patch.
        rendered: each applied patch as export writes it, by path.
        needy: patches that apply in the series but not on what they say they need, with the reason.
    """

    outcomes: tuple[Outcome, ...]
    rendered: dict[str, bytes]
    needy: dict[str, str]


class Context:
    """The facts that the rules judge; whatever costs time is found on first use, once.

    Args:
        folder: the patches folder as read.
        root: the checkout, where guards are.
        mirror: holds the release.
        version: the release that the series is for.
    """

    def __init__(self, folder: Folder, root: Path, mirror: Mirror, version: str) -> None:
        self.folder = folder
        self.root = root
        self.mirror = mirror
        self.version = version

    @property
    def sound(self) -> tuple[Patch, ...]:
        """The patches whose trailers can be read."""
        return tuple(patch for patch in self.folder.patches if not patch.problems)

    @cached_property
    def applied(self) -> Applied:
        """The sound patches, applied in order."""
        with stack(self.mirror, self.version) as onto:
            outcomes = push_all(onto, Series(self.sound))
            rendered = {item.patch.path: render(onto.repository, item.commit) for item in outcomes if item.ok}
            needy = {item.patch.path: why for item in outcomes if item.ok and (why := self._alone(onto, item.patch))}
        return Applied(tuple(outcomes), rendered, needy)

    def _alone(self, onto: Stack, patch: Patch) -> str:
        """Why a patch does not apply on what it needs and nothing else; empty when it does."""
        known = {other.stem: other for other in self.sound}
        wanted, todo = {patch.stem}, list(patch.meta.needs)
        while todo:
            name = todo.pop()
            if name in known and name not in wanted:
                wanted.add(name)
                todo.extend(known[name].meta.needs)
        if len(wanted) == len(known):
            return ""
        onto.rewind()
        outcomes = push_all(onto, Series(tuple(other for other in self.sound if other.stem in wanted)))
        last = next(outcome for outcome in outcomes if outcome.patch == patch)
        return "" if last.ok else "; ".join(str(failure) for failure in last.failures)


class Rule(ABC):
    """One rule; the docstring of the class is its documentation, and its first line the title."""

    id: ClassVar[str]

    @abstractmethod
    def check(self, context: Context) -> Iterator[Violation]:
        """Everything that breaks the rule."""

    def breach(self, where: str, what: str) -> Violation:
        """A violation of this rule."""
        return Violation(self.id, where, what)

    @classmethod
    def title(cls) -> str:
        """The rule in one line."""
        return inspect.cleandoc(cls.__doc__ or "").split("\n")[0].rstrip(".")

    @classmethod
    def explain(cls) -> str:
        """Id and documentation, for `series lint --explain`."""
        return f"{cls.id}: {inspect.cleandoc(cls.__doc__ or '')}"
