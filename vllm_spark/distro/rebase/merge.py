"""Trees of git objects, merged and patched without a work tree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.distro.upstream.git import Repository
from vllm_spark.errors import ProcessError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from vllm_spark import proc
    from vllm_spark.distro.series.patch import Patch

__all__ = ["Bench", "Conflict", "Merge"]

_NOBODY = {"GIT_AUTHOR_NAME": "vllm-spark", "GIT_AUTHOR_EMAIL": "rebase@vllm-spark.invalid"}
# Which file a moved one became is decided by content alone, however many files moved with it; a file that a patch
# adds follows its folder.
_MERGE = ("-c", "merge.renameLimit=20000", "-c", "merge.directoryRenames=true", "-c", "merge.conflictStyle=diff3")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_OFFSET = re.compile(r"Hunk #\d+ succeeded at \d+ \(offset -?\d+ lines?\)")
_WILD, _ESCAPED = re.compile(r"([*?\[\\])"), r"\\\1"  # --exclude takes patterns


@dataclass(frozen=True)
class Conflict:
    """A file that a merge could not settle: git's name for the kind, and the index entries of its three sides."""

    path: str
    kind: str
    stages: Mapping[int, tuple[str, str]]


@dataclass(frozen=True)
class Merge:
    """The result of a merge; with conflicts, the tree holds the files with conflict markers."""

    tree: str
    conflicts: tuple[Conflict, ...]


class Bench(Repository):
    """A repository to try things in, with an index of its own beside that of a work tree.

    Args:
        path: the git directory; it can see the objects of both releases.
        tree: a folder to read files from or to write them to; None where trees of objects are enough.
        index: the index; None puts it into the git directory.
    """

    def __init__(self, path: Path, tree: Path | None = None, index: Path | None = None) -> None:
        super().__init__(path, tree)
        self._index = index or path / "spark-index"
        self._known: dict[str, str] = {}  # commit -> its tree; a commit never gets another one

    def __call__(
        self, *words: str, stdin: bytes | None = None, check: bool = True, env: Mapping[str, str] | None = None
    ) -> proc.Finished:
        """Run git; the index is this object's own."""
        mine = {"GIT_INDEX_FILE": str(self._index), **(env or {})}
        return super().__call__(*words, stdin=stdin, check=check, env=mine)

    def tree_of(self, name: str) -> str:
        """The tree of a commit."""
        if name not in self._known:
            found = self.line("rev-parse", "--verify", f"{name}^{{tree}}")
            if not _COMMIT.fullmatch(name):
                return found  # a branch moves
            self._known[name] = found
        return self._known[name]

    def commit(self, tree: str, *parents: str, message: str = "merge input") -> str:
        """A commit that only git will read."""
        words = [word for parent in parents for word in ("-p", parent)]
        env = {**_NOBODY, "GIT_AUTHOR_DATE": "@0 +0000"}
        return self("commit-tree", tree, *words, stdin=message.encode(), env=env).text.strip()

    def recommit(self, commit: str, tree: str, parent: str, forget: Collection[str] = ()) -> str:
        """A commit with the message and author of another, and without the needs in `forget`."""
        head, _, message = self("cat-file", "commit", commit).stdout.partition(b"\n\n")
        kept = [line for line in head.split(b"\n") if not line.startswith((b"tree ", b"parent "))]
        gone = {f"Spark-Needs: {name}".encode() for name in forget}
        body = b"\n".join(line for line in message.split(b"\n") if line not in gone)
        text = b"\n".join([f"tree {tree}\nparent {parent}".encode(), *kept]) + b"\n\n" + body
        made = self("hash-object", "-t", "commit", "-w", "--stdin", stdin=text).text.strip()
        self._known[made] = tree
        return made

    def merge(self, base: str, ours: str, theirs: str) -> Merge:
        """Take the change from tree `base` to tree `theirs` to tree `ours`, following upstream's renames."""
        root = self.commit(base)
        sides = (self.commit(ours, root), self.commit(theirs, root))
        words = (*_MERGE, "merge-tree", "--write-tree", "-z", *sides)
        done = self(*words, check=False)
        if done.status not in (0, 1):
            raise ProcessError(["git", *words], done.status, done.output)
        tree, *rest = done.text.split("\0")
        return Merge(tree, _conflicts(rest) if done.status == 1 else ())

    def applied(self, patch: Patch, onto: str, without: Collection[str] = ()) -> tuple[str, tuple[str, ...]] | None:
        """The tree that `git apply` makes without fuzz, and its words on displaced hunks; None when it refuses."""
        self("read-tree", onto)
        words = [f"--exclude={_WILD.sub(_ESCAPED, path)}" for path in without]
        done = self("apply", "--cached", "--verbose", *words, "-", stdin=patch.format(), check=False)
        if done.status != 0:
            return None
        said = done.stderr.decode("utf-8", "surrogateescape")
        return self.line("write-tree"), tuple(match[0] for match in _OFFSET.finditer(said))

    def reversed(self, patch: Patch, onto: str, moved: Mapping[str, str]) -> str | None:
        """The tree without the patch, where it can be taken out without fuzz; `moved` gives files their new names."""
        self("read-tree", onto)
        words = ("apply", "--cached", "--reverse", "-")
        done = self(*words, stdin=_with_names(patch.format(), moved), check=False)
        return self.line("write-tree") if done.status == 0 else None

    def changed(self, old: str, new: str) -> tuple[str, ...]:
        """The paths in which two trees differ."""
        names = self("diff-tree", "-r", "-z", "--no-renames", "--name-only", old, new).text
        return tuple(name for name in names.split("\0") if name)

    def blob(self, tree: str, path: str) -> bytes | None:
        """A file's bytes; None when the tree has no such file."""
        done = self("cat-file", "blob", f"{tree}:{path}", check=False)
        return done.stdout if done.status == 0 else None

    def edited(self, tree: str, files: Mapping[str, bytes | None]) -> str:
        """A tree with these contents; None removes a file."""
        self("read-tree", tree)
        entries = []
        for path, data in files.items():
            if data is None:
                entries.append("0 " + "0" * 40 + f"\t{path}\0")
            else:
                entries.append(f"100644 {self('hash-object', '-w', '--stdin', stdin=data).text.strip()}\t{path}\0")
        self("update-index", "-z", "--index-info", stdin="".join(entries).encode("utf-8", "surrogateescape"))
        return self.line("write-tree")

    def restored(self, tree: str, source: str, files: Collection[str]) -> str:
        """`tree` with some files as they are in `source`, or without them where it has none."""
        self("read-tree", tree)
        entries = ["0 " + "0" * 40 + f"\t{path}\0" for path in files]
        entries += [self("ls-tree", "-z", source, "--", path).text for path in files]
        data = "".join(entries).encode("utf-8", "surrogateescape")
        self("update-index", "-z", "--index-info", stdin=data)
        return self.line("write-tree")


def _with_names(data: bytes, moved: Mapping[str, str]) -> bytes:
    """A patch with other file names in the headers of its changes."""
    for old, new in moved.items():
        was, now = (path.encode("utf-8", "surrogateescape") for path in (old, new))
        for form in (b"\ndiff --git a/%b b/%b\n", b"\n--- a/%b\n", b"\n+++ b/%b\n"):
            count = form.count(b"%b")
            data = data.replace(form % ((was,) * count), form % ((now,) * count))
    return data


def _conflicts(fields: list[str]) -> tuple[Conflict, ...]:
    """Read `merge-tree -z`: index entries, an empty field, then messages as (count, paths…, kind, text)."""
    end = fields.index("")
    stages: dict[str, dict[int, tuple[str, str]]] = {}
    for entry in fields[:end]:
        facts, _, path = entry.partition("\t")
        mode, oid, stage = facts.split(" ")
        stages.setdefault(path, {})[int(stage)] = (mode, oid)
    kinds: dict[str, str] = {}
    rest = iter(fields[end + 1 :])
    for count in rest:
        if not count:
            break
        names = [next(rest) for _ in range(int(count))]
        kind, _text = next(rest), next(rest)
        if kind.startswith("CONFLICT"):
            kinds.update({name: kind.removeprefix("CONFLICT (").removesuffix(")") for name in names})
    return tuple(Conflict(path, kinds.get(path, "contents"), entries) for path, entries in stages.items())
