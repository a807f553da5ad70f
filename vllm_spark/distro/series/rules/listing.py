"""Rules about the folder as a whole: what is listed, what is there, in which order, how much of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from vllm_spark.distro.series import ledger
from vllm_spark.distro.series.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.series.rules.base import Context, Violation

__all__ = ["Budget", "Listed", "Needs", "Once"]


class Listed(Rule):
    """Every patch file is listed, and every listed one exists.

    A patch file that `series` does not list is never applied, and nobody notices; a listed one that is missing
    stops the next release. Add the line, or delete the file.
    """

    id = "P001"

    def check(self, context: Context) -> Iterator[Violation]:
        """Compare the folder with `series`."""
        for entry in context.folder.missing:
            yield self.breach("series", f"{entry} is listed but does not exist")
        for entry in context.folder.unlisted:
            yield self.breach(entry, "exists but is not listed in series")


class Once(Rule):
    """No patch is listed twice, and no two share a name.

    A patch applied twice fails or doubles its effect, and two patches of one name cannot be told apart in reports,
    needs and the ledger.
    """

    id = "P002"

    def check(self, context: Context) -> Iterator[Violation]:
        """Count entries and names."""
        for entry in context.folder.doubled:
            yield self.breach("series", f"{entry} is listed more than once")
        names = Counter(patch.meta.name for patch in context.sound)
        for patch in context.sound:
            if names[patch.meta.name] > 1:
                yield self.breach(patch.path, f"another patch is named {patch.meta.name} too")


class Needs(Rule):
    """Needs are complete, and stand earlier in the series.

    `Spark-Needs` is what lets one patch fail without hiding the others, and lets a guard be proved by leaving its
    patch out. So it must name patches that stand earlier in `series` (which rules out circles), and all of them: a
    patch has to apply to the release with nothing but what it needs.
    """

    id = "P010"

    def check(self, context: Context) -> Iterator[Violation]:
        """Look each need up, then apply each patch on its needs alone."""
        names = {patch.stem for patch in context.sound}
        seen: set[str] = set()
        for patch in context.sound:
            for need in patch.meta.needs:
                if need == patch.stem:
                    yield self.breach(patch.path, "needs itself")
                elif need not in names:
                    yield self.breach(patch.path, f"needs {need}, which the series does not have")
                elif need not in seen:
                    yield self.breach(patch.path, f"needs {need}, which stands later in series")
            seen.add(patch.stem)
        for path, why in context.applied.needy.items():
            yield self.breach(path, f"does not apply on what it needs alone ({why}); name the missing need")


class Budget(Rule):
    """The series stays within its recorded budget.

    A series grows one harmless patch at a time until nobody can move it to the next release. The last `[[budget]]`
    of `ledger.toml` is the most that it may hold; to raise it, add another with the reason.
    """

    id = "P011"

    def check(self, context: Context) -> Iterator[Violation]:
        """Count patches and changed lines."""
        budget = ledger.load(context.folder.path / "ledger.toml").budget[-1]
        patches = len(context.folder.file.entries)
        changes = [change for patch in context.folder.patches for change in patch.changes]
        lines = sum(len(change.added) + change.removed for change in changes)
        if patches > budget.patches:
            yield self.breach("ledger.toml", f"{patches} patches, the budget is {budget.patches}")
        if lines > budget.lines:
            yield self.breach("ledger.toml", f"{lines} lines added or removed, the budget is {budget.lines}")
