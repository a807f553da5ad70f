"""The checkout that the series lives in: read, refused when it holds unsaved work, given a branch; never written to."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from vllm_spark.distro.rebase.merge import Bench
from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Checkout"]

_READ = ("patches", "pyproject.toml", "tests/guards")  # what a rebase takes from the work tree
_NAME = {"NAME": "vllm-spark", "EMAIL": "rebase@vllm-spark.invalid"}


class Checkout:
    """A clone of this project.

    Args:
        root: its work tree.
        index: where to keep an index of our own, so that the clone's is not touched.

    Raises:
        ConfigError: it is no clone.
    """

    def __init__(self, root: Path, index: Path) -> None:
        if not (root / ".git").exists():
            hint = "run it in a clone, or use `rebase plan`, which needs none"
            raise ConfigError("no git clone: there is nothing to make a branch in", where=str(root), hint=hint)
        self.root = root
        self.git = Bench(root / ".git", root, index)

    def head(self) -> str:
        """The commit that is checked out.

        Raises:
            ConfigError: there is none yet.
        """
        found = self.git.resolve("HEAD")
        if found is None:
            raise ConfigError("the clone has no commit", where=str(self.root), hint="commit the series first")
        return found

    def refuse_unsaved(self) -> None:
        """Make sure that what is on disk is what the branch will start from.

        Raises:
            ConfigError: it is not.
        """
        head = self.head()
        self.git("read-tree", head)
        self.git("update-index", "-q", "--refresh", check=False)
        present = [name for name in _READ if (self.root / name).exists()]
        edits = self.git("status", "--porcelain", "-z", "--untracked-files=all", "--", *present).text.split("\0")
        names = [edit[3:] for edit in edits if edit]
        if names:
            what = f"holds work that is not committed ({len(names)} files, first {names[0]})"
            raise ConfigError(what, where=str(self.root), hint="commit it, or put it aside with git stash")

    def refuse_branch(self, branch: str) -> None:
        """Make sure that a branch can be made.

        Raises:
            ConfigError: there is one of this name.
        """
        if self.git.resolve(f"refs/heads/{branch}") is not None:
            hint = f"merge it, or git branch -D {branch}"
            raise ConfigError("there is a branch of this name already", where=branch, hint=hint)

    def read(self, commit: str, path: str) -> str:
        """A file of a commit as text; empty when it has no such file."""
        return (self.git.blob(commit, path) or b"").decode()

    def commit(self, parent: str, files: Mapping[str, bytes | None], message: str) -> str:
        """A commit that changes these files."""
        now = dt.datetime.now(dt.UTC).strftime("%s +0000")
        env = {f"GIT_{who}_{key}": value for who in ("AUTHOR", "COMMITTER") for key, value in _NAME.items()}
        env |= {f"GIT_{who}_DATE": f"@{now}" for who in ("AUTHOR", "COMMITTER")}
        tree = self.git.edited(parent, files)
        return self.git("commit-tree", tree, "-p", parent, stdin=message.encode(), env=env).text.strip()

    def make_branch(self, branch: str, commit: str) -> None:
        """Give a commit a name; the work tree and the branch that is checked out stay as they are."""
        self.git("update-ref", f"refs/heads/{branch}", commit, "0" * 40)

    def remove_branch(self, branch: str) -> None:
        """Take a branch away that `make_branch` made."""
        self.git("update-ref", "-d", f"refs/heads/{branch}")

    def write_out(self, commit: str, folder: Path) -> None:
        """Write a commit's files to an empty folder."""
        writer = Bench(self.git.path, folder, folder.parent / f".{folder.name}.index")
        folder.mkdir(parents=True)
        writer("read-tree", "--reset", "-u", commit)
