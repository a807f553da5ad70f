"""The only place that calls git, with everything pinned that a user's or a machine's configuration could change."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING

from vllm_spark import proc
from vllm_spark.errors import ToolMissing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["MINIMUM", "Repository", "require"]

MINIMUM = (2, 39)  # first release with `apply --cached --3way` as we use it, and with every pin below that matters

# Each line closes one leak into the result, or saves time in repositories that can be made again.
_PINS = {
    "core.attributesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.excludesFile": "/dev/null",
    "core.fileMode": "true",
    "core.fsmonitor": "false",
    "core.fsync": "none",
    "core.hooksPath": "/dev/null",
    "core.quotePath": "true",
    "core.symlinks": "true",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "index.skipHash": "true",
    "index.version": "4",
    "checkout.workers": "1",
    "advice.detachedHead": "false",
    "init.defaultBranch": "series",
    "apply.ignoreWhitespace": "no",
    "apply.whitespace": "nowarn",
    "diff.algorithm": "myers",
    "diff.context": "3",
    "diff.indentHeuristic": "true",
    "diff.interHunkContext": "0",
    "diff.mnemonicPrefix": "false",
    "diff.noprefix": "false",
    "diff.orderFile": "/dev/null",
    "diff.renameLimit": "1000",
    "diff.renames": "true",
    "diff.suppressBlankEmpty": "false",
    "format.coverLetter": "false",
    "format.from": "false",
    "format.mboxrd": "false",
    "format.noprefix": "false",
    "format.notes": "false",
    "format.signOff": "false",
    "format.suffix": ".patch",
    "format.useAutoBase": "false",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
    "mailinfo.scissors": "false",
}
# The repository's own file outranks .gitattributes inside the tree: bytes stay bytes, and function names
# in hunk headers come from one rule whatever upstream ships.
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding !diff !merge\n"
_EXCLUDES = "__pycache__/\n*.pyc\n"


def require() -> str:
    """The absolute path of a git that is new enough.

    Raises:
        ToolMissing: there is none.
    """
    hint = f"install git >= {MINIMUM[0]}.{MINIMUM[1]} (apt-get install git)"
    path = proc.require("git", hint=hint)
    return _checked(path, hint)


@cache
def _checked(path: str, hint: str) -> str:
    text = proc.run([path, "version"]).text.strip()
    found = re.match(r"git version (\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) < MINIMUM:
        raise ToolMissing(f"too old: {text!r}", where=path, hint=hint)
    return path


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Ours without any GIT_*: a hook that runs us sets GIT_DIR and GIT_INDEX_FILE to the caller's repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "LC_", "LANG"))}
    fixed = {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_COMMITTER_NAME": "vllm-spark",
        "GIT_COMMITTER_EMAIL": "series@vllm-spark.invalid",
        "GIT_COMMITTER_DATE": "@0 +0000",
        "LC_ALL": "C",
        "TZ": "UTC",
    }
    return {**kept, **fixed, **extra}


class Repository:
    """One git repository, always named by path: git never searches for one, nor asks who owns the folder.

    Args:
        path: the git directory itself.
        tree: its work tree; None for a bare repository.
    """

    def __init__(self, path: Path, tree: Path | None = None) -> None:
        self.path = path
        self.tree = tree

    def __call__(
        self, *words: str, stdin: bytes | None = None, check: bool = True, env: Mapping[str, str] | None = None
    ) -> proc.Finished:
        """Run git on this repository, in its work tree where it has one."""
        pins = [word for name, value in _PINS.items() for word in ("-c", f"{name}={value}")]
        where = [f"--git-dir={self.path}"] + ([f"--work-tree={self.tree}"] if self.tree else [])
        argv = [require(), "--literal-pathspecs", *where, *pins, *words]
        return proc.run(argv, cwd=self.tree or self.path, stdin=stdin, check=check, env=_environment(env or {}))

    def line(self, *words: str) -> str:
        """The one line that git prints."""
        return self(*words).text.strip()

    def resolve(self, name: str) -> str | None:
        """The commit id behind `name`; None when there is none."""
        done = self("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)
        return done.text.strip() if done.status == 0 else None

    @classmethod
    def create(cls, path: Path, tree: Path | None = None, *, borrow: Path | None = None) -> Repository:
        """Make a repository, or complete one whose making was interrupted.

        Args:
            path: the git directory.
            tree: its work tree; None makes it bare.
            borrow: another git directory whose objects this one uses without copying them.
        """
        path.mkdir(parents=True, exist_ok=True)
        proc.run(
            [require(), "-c", "init.defaultBranch=series", "init", "--quiet", "--template=", "--bare", str(path)],
            env=_environment({}),
        )
        (path / "info").mkdir(exist_ok=True)
        (path / "info" / "attributes").write_text(_ATTRIBUTES)
        (path / "info" / "exclude").write_text(_EXCLUDES)
        if borrow is not None:
            (path / "objects" / "info" / "alternates").write_text(f"{borrow / 'objects'}\n")
        repository = cls(path, tree)
        if tree is not None:
            repository("config", "core.bare", "false")
        return repository
