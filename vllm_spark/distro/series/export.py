"""Writing patches: the same commit gives the same bytes on every machine, so that a patch changes only when meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_spark import paths
from vllm_spark.distro.series import patch as patches
from vllm_spark.distro.series.apply import BASE, ApplyError, push_all, stack
from vllm_spark.distro.upstream.git import Repository
from vllm_spark.errors import ConfigError, DecisionNeeded, PatchError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from vllm_spark.distro.series.patch import Patch
    from vllm_spark.distro.series.store import Series
    from vllm_spark.distro.upstream.mirror import Mirror

__all__ = ["from_tree", "refreshed", "render", "write"]

# What each one keeps out of the bytes: the commit id; abbreviated blob ids, without which no three-way merge finds
# its base; git's version; the terminal's width (with no stat at all the --- line goes, and the trailers with it);
# "[PATCH n/m]", which changes when a neighbour does; whatever the tree's own configuration asks for.
_FLAGS = (
    "--zero-commit",
    "--full-index",
    "--no-signature",
    "--stat=72",
    "--keep-subject",
    "--no-numbered",
    "--unified=3",
    "--encode-email-headers",
    "--no-attach",
    "--no-thread",
    "--no-signoff",
    "--no-base",
    "--no-notes",
    "--no-to",
    "--no-cc",
    "--no-add-header",
    "--no-ext-diff",
    "--no-textconv",
    "--no-relative",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


def render(repository: Repository, commit: str) -> bytes:
    """A commit as a patch file."""
    return repository("format-patch", *_FLAGS, "--stdout", "-1", commit).stdout


def refreshed(series: Series, mirror: Mirror, version: str) -> dict[str, bytes]:
    """Every patch of the series as it must be written, by path.

    Raises:
        ApplyError: one does not apply.
    """
    with stack(mirror, version) as onto:
        outcomes = push_all(onto, series)
        if not all(outcome.ok for outcome in outcomes):
            raise ApplyError(outcomes)
        return {outcome.patch.path: render(onto.repository, outcome.commit) for outcome in outcomes}


def from_tree(tree: Path, base: str) -> dict[str, bytes]:
    """The commits of a tree that `series apply` wrote and somebody worked in, as patch files in order.

    Args:
        tree: the work tree.
        base: the commit of the release that it must stand on.

    Raises:
        ConfigError: it is no such tree, stands on another release, or holds work that is not committed.
        PatchError: a commit is no well-formed patch; two carry the same name.
    """
    git = Repository(tree / ".git", tree)
    if not (tree / ".git").is_dir() or git.resolve(BASE) is None:
        hint = f"vllm-spark series apply --to {tree}"
        raise ConfigError("no tree that `series apply` wrote", where=str(tree), hint=hint)
    if git.resolve(BASE) != base:
        raise ConfigError("stands on another release", where=str(tree), hint="apply the series to a fresh folder")
    edits = git("status", "--porcelain", "--untracked-files=all").text.splitlines()
    if edits:
        what = f"holds work that is not committed ({len(edits)} files, first {edits[0][3:]})"
        raise ConfigError(what, where=str(tree), hint="commit it, amend with it, or remove it")
    found: dict[str, bytes] = {}
    for line in git("rev-list", "--reverse", "--topo-order", "--parents", f"{base}..HEAD").text.splitlines():
        commit, *parents = line.split()
        if len(parents) != 1:
            raise PatchError(f"commit {commit[:12]} is a merge", where=str(tree), hint="rebase it into one line")
        patch = _named(commit, render(git, commit), tree)
        if patch.path in found:
            raise PatchError(f"two commits are {patch.stem}", where=str(tree), hint="squash them, or rename one")
        found[patch.path] = patch.format()
    return found


def _named(commit: str, data: bytes, tree: Path) -> Patch:
    """A rendered commit under the path that its own trailers give it."""
    where = f"{tree} commit {commit[:12]}"
    if not data:
        raise PatchError("changes nothing", where=where, hint="drop the commit, or finish it")
    patch = patches.parse(where, data)
    return patches.parse(f"{patch.meta.name}.patch", data)


def write(folder: Path, old: Series, files: dict[str, bytes], dropped: Collection[str]) -> list[str]:
    """Make the patches folder hold exactly `files`, in their order; what is equal already is not touched.

    Args:
        folder: the patches folder.
        old: the series as it is there.
        files: bytes by path, in order.
        dropped: names in the ledger, which may go.

    Returns:
        The paths written or removed.

    Raises:
        DecisionNeeded: a patch would go without an entry in the ledger.
    """
    gone = [patch for patch in old.patches if patch.path not in files]
    for patch in gone:
        if patch.stem not in dropped:
            hint = "say in patches/ledger.toml why it is dropped, or bring its commit back"
            raise DecisionNeeded("is not among the exported commits", where=patch.path, hint=hint)
    before = {patch.path: patch.format() for patch in old.patches}
    changed = [path for path, data in files.items() if before.get(path) != data]
    for path in changed:
        paths.atomic_write(folder / path, files[path])
    listing = old.file.with_entries(list(files))
    if listing != old.file:
        paths.atomic_write(folder / "series", listing.format())
        changed.append("series")
    for patch in gone:
        (folder / patch.path).unlink()
        changed.append(patch.path)
    return changed
