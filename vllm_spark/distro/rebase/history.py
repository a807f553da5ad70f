"""What only upstream's own git history can tell: which pull requests and commits lie between two releases."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from vllm_spark.distro.upstream.git import Repository
from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

__all__ = ["History", "open_clone"]

_PULL = re.compile(r"\(#(\d+)\)")
_MOST = 5  # commits named as a conflict's cause


class History:
    """The commits of a clone from one release to the next.

    Args:
        clone: the repository.
        old: the release's tag that the range starts after.
        new: the tag that it ends with.
    """

    def __init__(self, clone: Repository, old: str, new: str) -> None:
        self.clone = clone
        self.range = f"{old}..{new}"

    @cached_property
    def commits(self) -> dict[str, str]:
        """Every commit id in the range, with its subject."""
        lines = self.clone("log", "--format=%H %s", self.range).text.splitlines()
        return {line[:40]: line[41:] for line in lines}

    @cached_property
    def pulls(self) -> dict[int, str]:
        """Pull requests that the subjects name, with the commit that merged each."""
        return {int(number): commit for commit, subject in self.commits.items() for number in _PULL.findall(subject)}

    def find(self, sha: str) -> str:
        """The commit that `sha` abbreviates, in the range or named in a message of it (a cherry-pick); "" if none."""
        named = self.clone("log", "-1", "--format=%H", f"--grep={sha}", "--fixed-strings", self.range).text.strip()
        return next((commit for commit in self.commits if commit.startswith(sha)), named)

    def same_change(self, diff: bytes, paths: Collection[str]) -> str:
        """The commit that makes exactly this change, by git's patch id; "" if none does."""
        wanted = self.clone("patch-id", "--stable", stdin=diff).text.split(" ")[0]
        log = self.clone("log", "-p", "--format=commit %H", "--no-ext-diff", self.range, "--", *paths).stdout
        for line in self.clone("patch-id", "--stable", stdin=log).text.splitlines():
            found, _, commit = line.partition(" ")
            if found == wanted:
                return commit
        return ""

    def describe(self, commit: str) -> str:
        """A commit as people name it."""
        return f"{commit[:12]} {self.commits.get(commit, '')}".strip()

    def cause(self, path: str, lines: Collection[str]) -> tuple[str, ...]:
        """The commits that took away or changed one of these lines of a file, the newest first."""
        log = self.clone("log", "-p", "-U0", "--format=%x00%H", "--no-ext-diff", "--follow", self.range, "--", path)
        found: list[str] = []
        for entry in log.text.split("\0")[1:]:
            commit, _, body = entry.partition("\n")
            if any(line[1:] in lines for line in body.splitlines() if line.startswith("-")):
                found.append(self.describe(commit))
        return tuple(found[:_MOST])

    def removal(self, path: str) -> tuple[str, ...]:
        """The commit that deleted or renamed a file."""
        found = self.clone("log", "-1", "--format=%H", "--diff-filter=DR", self.range, "--", path).text.strip()
        return (self.describe(found),) if found else ()


def open_clone(path: Path) -> Repository:
    """A clone of upstream, with or without a work tree.

    Raises:
        ConfigError: it is none.
    """
    git = Repository(path / ".git" if (path / ".git").exists() else path)
    if not git.path.exists() or git("rev-parse", "--git-dir", check=False).status != 0:
        raise ConfigError("no git repository", where=str(path), hint="name a clone of upstream")
    return git
