"""Signs that upstream has taken a patch's intent: never proof, always a reason to look."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    from vllm_spark.distro.rebase.history import History
    from vllm_spark.distro.rebase.merge import Bench
    from vllm_spark.distro.series.patch import Patch

__all__ = ["candidates", "namers"]

_PULL = re.compile(r"/pull/(\d+)\b")
_ORIGIN = re.compile(r"@([0-9a-f]{7,40})")


def candidates(
    patch: Patch, bench: Bench, trees: tuple[str, str], versions: tuple[str, str], history: History | None
) -> tuple[str, ...]:
    """What in the patch's trailers has come true between two releases.

    Args:
        patch: the patch.
        bench: where the trees are.
        trees: the old and the new release.
        versions: the same as version numbers.
        history: the commits between them, if known.
    """
    found: list[str] = []
    old, new = (Version(version) for version in versions)
    for condition in patch.meta.drop_when:
        kind, _, value = condition.partition(":")
        if condition.startswith("version>="):
            least = Version(condition.removeprefix("version>="))
            if old < least <= new:
                found.append(f"{condition} is reached")
        elif kind == "symbol" and _has(bench, trees[1], value) and not _has(bench, trees[0], value):
            found.append(f"{value} exists now")
    return (*found, *(_known(patch, history) if history else ()))


def _known(patch: Patch, history: History) -> list[str]:
    conditions = [condition.partition(":") for condition in patch.meta.drop_when]
    pulls = {int(value) for kind, _, value in conditions if kind == "pr"}
    pulls |= {int(number) for number in _PULL.findall(patch.meta.upstream)}
    shas = [value for kind, _, value in conditions if kind == "commit"] + _ORIGIN.findall(patch.meta.origin)
    found = [f"pull request {n} is {history.describe(history.pulls[n])}" for n in sorted(pulls & set(history.pulls))]
    commits = [commit for commit in map(history.find, shas) if commit]
    return found + [f"commit {history.describe(commit)} is in it" for commit in commits]


def namers(patch: Patch, diff: bytes, history: History | None) -> tuple[str, ...]:
    """The commit that made exactly this change; it names a landed patch, and proves nothing that the merge did not."""
    if history is None:
        return ()
    commit = history.same_change(diff, [change.path for change in patch.changes])
    return (f"the same change is {history.describe(commit)}",) if commit else ()


def _has(bench: Bench, tree: str, dotted: str) -> bool:
    """Whether a module of the tree defines this name at its top level or in a class."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        stem = "/".join(parts[:cut])
        data = bench.blob(tree, f"{stem}.py") or bench.blob(tree, f"{stem}/__init__.py")
        if data is not None:
            return _defines(ast.parse(data), parts[cut:])
    return False


def _defines(node: ast.Module | ast.ClassDef, names: list[str]) -> bool:
    if not names:
        return True
    for child in node.body:
        targets: list[ast.expr] = []
        if isinstance(child, ast.Assign):
            targets = child.targets
        elif isinstance(child, ast.AnnAssign):
            targets = [child.target]
        if len(names) == 1 and any(isinstance(target, ast.Name) and target.id == names[0] for target in targets):
            return True
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and child.name == names[0]:
            return _defines(child, names[1:]) if isinstance(child, ast.ClassDef) else len(names) == 1
    return False
