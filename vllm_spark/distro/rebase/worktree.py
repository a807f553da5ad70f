"""The work tree in which a person settles a conflict: the new release with everything carried so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.distro.rebase.explain import has_markers
from vllm_spark.distro.series.apply import BASE, TIP
from vllm_spark.distro.upstream.git import Repository
from vllm_spark.errors import ConfigError, DecisionNeeded

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.rebase.ladder import Ladder
    from vllm_spark.distro.rebase.merge import Merge

__all__ = ["WorkTree"]


class WorkTree:
    """A folder with a git directory of its own; its objects are borrowed from the mirror.

    Args:
        path: the folder; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.git = Repository(path / ".git", path)

    def show(self, ladder: Ladder, tip: str, stopped: Merge | None = None) -> None:
        """Write the files of `tip`, or of a merge that failed on top of it, with git's marks in both places."""
        git, release = self.git, ladder.new
        git("config", "core.bare", "false")
        with console.step(f"write {self.path}"):
            wanted = stopped.tree if stopped else tip
            git("read-tree", "--reset", "-u", wanted)
            git("clean", "-qfdx")
        refs = {
            BASE: release.commit,
            TIP: tip,
            "refs/heads/series": tip,
            f"refs/tags/v{release.version}": release.commit,
        }
        git(
            "update-ref",
            "--stdin",
            stdin="".join(f"update {name} {commit}\n" for name, commit in refs.items()).encode(),
        )
        git("symbolic-ref", "HEAD", "refs/heads/series")
        if stopped is None:
            return
        git("read-tree", tip)  # what the merge changed shows as a change, and conflicts as conflicts
        entries = []
        for conflict in stopped.conflicts:
            entries.append("0 " + "0" * 40 + f"\t{conflict.path}\0")
            entries += [f"{mode} {oid} {stage}\t{conflict.path}\0" for stage, (mode, oid) in conflict.stages.items()]
        git("update-index", "-z", "--index-info", stdin="".join(entries).encode("utf-8", "surrogateescape"))
        git("update-index", "-q", "--refresh", check=False)

    def resolution(self, patch: str) -> str:
        """What a person made of the work tree, as a commit on the tip that they were shown.

        Raises:
            DecisionNeeded: conflict markers are left, or nothing of the patch is.
            ConfigError: the work tree is gone.
        """
        git = self.git
        tip = git.resolve(TIP)
        if tip is None:
            raise ConfigError("the work tree is gone", where=str(self.path), hint="vllm-spark rebase abort")
        unmerged = git("ls-files", "-z", "--unmerged").text.split("\0")
        listed = {entry.partition("\t")[2] for entry in unmerged if entry}
        listed |= set(git("diff", "-z", "--name-only", tip).text.split("\0")) - {""}
        for name in sorted(listed):
            file = self.path / name
            if file.is_file() and not file.is_symlink() and has_markers(file.read_bytes()):
                hint = "settle every marked place, then vllm-spark rebase continue"
                raise DecisionNeeded("conflict markers are left", where=str(file), hint=hint)
        git("add", "--all", ".")
        tree = git.line("write-tree")
        if tree == git.line("rev-parse", f"{tip}^{{tree}}"):
            hint = f"edit the files and continue, or vllm-spark rebase continue --drop {patch} --why REASON"
            raise DecisionNeeded("nothing of the patch is left in the work tree", where=str(self.path), hint=hint)
        author = {"GIT_AUTHOR_NAME": "vllm-spark", "GIT_AUTHOR_EMAIL": "rebase@vllm-spark.invalid"}
        stdin = f"{patch}, settled by hand\n".encode()
        return git("commit-tree", tree, "-p", tip, stdin=stdin, env=author).text.strip()
