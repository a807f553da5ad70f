"""Applying a series to a release: every patch is tried, and either all of them land or nothing is written."""

from __future__ import annotations

import contextlib
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vllm_spark import paths
from vllm_spark.distro.series.diagnose import Failure, diagnose
from vllm_spark.distro.upstream.git import Repository
from vllm_spark.errors import ConfigError, PatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark import proc
    from vllm_spark.distro.series.patch import Patch
    from vllm_spark.distro.series.store import Series
    from vllm_spark.distro.upstream.mirror import Mirror

__all__ = ["BASE", "TIP", "ApplyError", "Outcome", "Stack", "apply_series", "stack"]

BASE = "refs/spark/base"  # the release that an applied tree stands on
TIP = "refs/spark/tip"  # the last patch as it was when the tree was written
_OFFSET = re.compile(r"Hunk #\d+ succeeded at \d+ \(offset -?\d+ lines?\)|Hunk #\d+ .*fuzz")


@dataclass(frozen=True)
class Outcome:
    """What became of one patch.

    Attributes:
        patch: the patch.
        state: `applied` exactly where it says; `offset`: applied, but at other lines; `failed`; `skipped`: not tried
            because a patch that it needs failed.
        files: paths in the tree that it changed, created or deleted.
        commit: the commit that holds it; empty unless applied.
        offsets: git's words on each displaced hunk.
        failures: why it failed, hunk by hunk.
        blocked_by: the failed patches that it needs.
    """

    patch: Patch
    state: Literal["applied", "offset", "failed", "skipped"]
    files: tuple[str, ...] = ()
    commit: str = ""
    offsets: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    blocked_by: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """It is in the tree."""
        return self.state in ("applied", "offset")


class ApplyError(PatchError):
    """The series does not apply; carries the outcome of every patch."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        bad = next(outcome for outcome in outcomes if outcome.failures)
        failed = sum(outcome.state == "failed" for outcome in outcomes)
        skipped = sum(outcome.state == "skipped" for outcome in outcomes)
        what = f"does not apply: {bad.failures[0]}"
        rest = f"{len(outcomes) - failed - skipped} of {len(outcomes)} patches apply, {failed} fail, {skipped} wait"
        hint = "mend the patch on this base, or `vllm-spark rebase`"
        super().__init__(f"{what} ({rest} for one that fails; nothing written)", where=bad.patch.path, hint=hint)
        self.outcomes = outcomes


class Stack:
    """Commits on top of a release, made in the index alone: no file is written until somebody wants the tree.

    Args:
        repository: a repository that can see the release's objects.
        base: the release's commit.
    """

    def __init__(self, repository: Repository, base: str) -> None:
        self.repository = repository
        self.base = base
        self.tip = base
        repository("read-tree", base)

    def rewind(self) -> None:
        """Go back to the bare release."""
        self.tip = self.base
        self.repository("read-tree", self.base)

    def push(self, patch: Patch) -> Outcome:
        """Apply one patch without fuzz and commit it; a patch that does not apply changes nothing."""
        git = self.repository
        done = git("apply", "--cached", "--verbose", "-", stdin=patch.format(), check=False)
        said = done.stderr.decode("utf-8", "surrogateescape")
        if done.status != 0:
            return Outcome(patch, "failed", failures=diagnose(patch, said, self.content))
        offsets = tuple(line.rstrip(".") for line in said.splitlines() if _OFFSET.match(line))
        made = self._commit(patch)
        if made.status != 0:
            git("read-tree", self.tip)
            why = f"git makes no commit of it: {made.output.strip().removeprefix('fatal: ')}"
            return Outcome(patch, "failed", failures=(Failure("its header", 0, 0, why),))
        parent, self.tip = self.tip, made.text.strip()
        names = git("diff-tree", "-r", "-z", "--no-renames", "--name-only", parent, self.tip).text
        files = tuple(name for name in names.split("\0") if name)
        return Outcome(patch, "offset" if offsets else "applied", files, self.tip, offsets)

    def content(self, path: str) -> bytes | None:
        """A file as it stands in the stack; None when there is none."""
        done = self.repository("cat-file", "blob", f":{path}", check=False)
        return done.stdout if done.status == 0 else None

    def _commit(self, patch: Patch) -> proc.Finished:
        git = self.repository
        message, rest = git.path / "spark-message", git.path / "spark-rest"
        told = git("mailinfo", "-k", "--encoding=UTF-8", str(message), str(rest), stdin=patch.format()).text
        facts = dict(line.split(": ", 1) for line in told.splitlines() if ": " in line)
        author = {
            "GIT_AUTHOR_NAME": facts.get("Author", ""),
            "GIT_AUTHOR_EMAIL": facts.get("Email", ""),
            "GIT_AUTHOR_DATE": facts.get("Date", ""),
        }
        body = facts.get("Subject", "").encode("utf-8", "surrogateescape") + b"\n\n" + message.read_bytes()
        tree = git.line("write-tree")
        message.unlink()
        rest.unlink()
        return git("commit-tree", tree, "-p", self.tip, stdin=body, env=author, check=False)


@contextlib.contextmanager
def stack(mirror: Mirror, version: str) -> Iterator[Stack]:
    """A throw-away stack on a release of the mirror."""
    with tempfile.TemporaryDirectory(prefix="vllm-spark-") as folder:
        repository = Repository.create(Path(folder) / "stack.git", borrow=mirror.path)
        yield Stack(repository, _base(repository, version))


def _base(repository: Repository, version: str) -> str:
    source = (repository.path / "objects" / "info" / "alternates").read_text().strip()
    found = Repository(Path(source).parent).resolve(f"refs/tags/v{version}")
    if found is None:
        raise ConfigError(f"no release {version} in the mirror", where=source, hint="pin its sdist in upstream.toml")
    return found


def push_all(onto: Stack, series: Series) -> list[Outcome]:
    """Try every patch in order; one whose need is not met waits, and hides no independent one."""
    outcomes: list[Outcome] = []
    bad: set[str] = set()
    for patch in series.patches:
        blocked = tuple(need for need in patch.meta.needs if need in bad)
        outcome = Outcome(patch, "skipped", blocked_by=blocked) if blocked else onto.push(patch)
        if not outcome.ok:
            bad.add(patch.stem)
        outcomes.append(outcome)
    return outcomes


def apply_series(series: Series, mirror: Mirror, version: str, to: Path) -> list[Outcome]:
    """Write the patched release to `to`: a work tree with one commit per patch on branch `series`.

    Its objects are borrowed from the mirror, so `git` works in it as long as the cache is kept; the files need
    nothing. A tree that an earlier run wrote is replaced if nobody worked in it.

    Returns:
        One outcome per patch, all of them `applied` or `offset`.

    Raises:
        ApplyError: a patch does not apply; nothing was written.
        ConfigError: `to` holds something else, or work that would be lost.
        ResourceError: `to` cannot be written, or there is no space.
    """
    refuse_work(to)
    to = to.absolute()
    packs = sum(file.stat().st_size for file in mirror.path.glob("objects/pack/*.pack"))
    paths.require_space(to, 4 * packs)
    with paths.atomic_dir(to) as fresh:
        repository = Repository.create(fresh / ".git", fresh, borrow=mirror.path)
        onto = Stack(repository, _base(repository, version))
        outcomes = push_all(onto, series)
        if not all(outcome.ok for outcome in outcomes):
            raise ApplyError(outcomes)
        repository("checkout-index", "--all", "--force", "--index", "--quiet")
        refs = {BASE: onto.base, TIP: onto.tip, "refs/heads/series": onto.tip}
        repository("update-ref", "--stdin", stdin="".join(f"create {k} {v}\n" for k, v in refs.items()).encode())
    return outcomes


def refuse_work(folder: Path) -> None:
    """Make sure that nothing of anybody's is lost when `folder` is replaced.

    Raises:
        ConfigError: it is a file, holds other things than an applied series, or commits or edits on top of one.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    hint = "choose another folder, or remove this one"
    git = Repository(folder / ".git", folder)
    if not (folder / ".git").is_dir() or git.resolve(TIP) is None:
        raise ConfigError("exists, and is no tree that `series apply` wrote", where=str(folder), hint=hint)
    if git.resolve("HEAD") != git.resolve(TIP):
        hint = f"vllm-spark series export --from {folder}, or remove the folder"
        raise ConfigError("holds commits that are not in the series", where=str(folder), hint=hint)
    edits = git("status", "--porcelain", "--untracked-files=all").text.splitlines()
    if edits:
        what = f"holds work that is not committed ({len(edits)} files, first {edits[0][3:]})"
        raise ConfigError(what, where=str(folder), hint=f"commit it there and export it, or {hint}")
