"""What a rebase says about one patch."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

__all__ = ["VERDICTS", "Clash", "Result", "Verdict"]

Verdict = Literal[
    "clean", "offset", "merged", "moved", "landed", "variant", "obsolete", "conflict", "broken", "waiting"
]
VERDICTS: tuple[str, ...] = get_args(Verdict)


class Clash(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a patch and the new release disagree.

    Attributes:
        file: the file of the new release; the patch's own name for it where the release has none.
        why: what is in the way.
        ours: the patch's hunk as written; empty when the whole file is at fault.
        upstream: the release's lines there, each with its number.
        cause: upstream's commits that changed these lines; empty without history.
        successor: the file of the new release that is most like a vanished one; empty when none is.
    """

    file: str
    why: str
    ours: str = ""
    upstream: tuple[str, ...] = ()
    cause: tuple[str, ...] = ()
    successor: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One patch's verdict and what it rests on.

    `waiting` is no verdict on the patch itself: a patch that it needs is not settled yet, so it was not tried.

    Attributes:
        patch: its name.
        verdict: what became of it.
        why: the reason in one sentence.
        commit: the commit that holds it on the new release; empty unless it is carried.
        dropped: why it leaves the series; empty while it stays.
        resolved: a person settled it in the work tree.
        files: paths of the new release that it changes.
        moved: file of the patch -> file of the new release, where upstream renamed it.
        landed: files of the patch whose change the release has already.
        left_out: test files whose change did not fit and was left out, so that the code is carried.
        candidates: signs that upstream has the same intent: pull requests, commits, versions, names.
        clashes: where it does not fit.
    """

    patch: str
    verdict: Verdict
    why: str
    commit: str = ""
    dropped: str = ""
    resolved: bool = False
    files: tuple[str, ...] = ()
    moved: dict[str, str] = {}
    landed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    clashes: tuple[Clash, ...] = ()

    @property
    def stuck(self) -> bool:
        """A person has to do something before it is carried or dropped."""
        return not self.commit and not self.dropped
