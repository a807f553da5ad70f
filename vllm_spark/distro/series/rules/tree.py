"""Rules about a patch and the release that it is for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vllm_spark.distro.series.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.series.rules.base import Context, Violation

__all__ = ["Canonical", "Exact", "Owner"]

# What the release tools write themselves, in the wheel or the sdist
_GENERATED = re.compile(r"vllm/_version\.py|PKG-INFO|setup\.cfg|[^/]+\.(egg-info|dist-info)/.*")


class Exact(Rule):
    """Applies to the pinned release without fuzz or offset.

    A patch that lands some lines off has found its context by luck, and next time finds it in the wrong place. On
    the pinned release every hunk applies at the very line it names; `vllm-spark series export` rewrites the numbers
    after somebody has looked. Nothing is ever applied with fuzz.
    """

    id = "P006"

    def check(self, context: Context) -> Iterator[Violation]:
        """Apply everything and read what git says of each hunk."""
        for outcome in context.applied.outcomes:
            for failure in outcome.failures:
                yield self.breach(outcome.patch.path, f"does not apply: {failure}")
            for offset in outcome.offsets:
                yield self.breach(outcome.patch.path, offset)


class Canonical(Rule):
    """Export writes the same bytes.

    When export writes every patch the same way on every machine, a difference in a patch file is a difference that
    somebody meant. A file that git would write otherwise, or that is no patch at all, is rewritten with
    `vllm-spark series export`.
    """

    id = "P007"

    def check(self, context: Context) -> Iterator[Violation]:
        """Compare each file with what export writes."""
        for fault in context.folder.malformed:
            yield self.breach(fault.where, fault.what)
        for outcome in context.applied.outcomes:
            path, data = outcome.patch.path, outcome.patch.format()
            rendered = context.applied.rendered.get(path, data)
            if outcome.state == "applied" and rendered != data:  # displaced hunks are P006's
                have, want = data.splitlines(), rendered.splitlines()
                line = next((n for n, (a, b) in enumerate(zip(have, want, strict=False), 1) if a != b), len(want))
                yield self.breach(f"{path}:{line}", "differs from what `vllm-spark series export` writes")


class Owner(Rule):
    """No patch touches a file that the release tools write.

    A file has one owner. The version file and the package metadata are written by the release tools, which would
    overwrite a patch's change without a word.
    """

    id = "P008"

    def check(self, context: Context) -> Iterator[Violation]:
        """Look at the touched files."""
        for patch in context.folder.patches:
            for change in patch.changes:
                if _GENERATED.fullmatch(change.path) or _GENERATED.fullmatch(change.source):
                    yield self.breach(patch.path, f"touches {change.path}, which the release tools write")
