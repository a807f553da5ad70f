"""`vllm-spark series`: the patch series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console, paths
from vllm_spark.distro.series import export, guards, ledger, rules, store, trees
from vllm_spark.distro.series.apply import ApplyError, apply_series, push_all, stack
from vllm_spark.distro.upstream import mirror, pins
from vllm_spark.errors import RuleError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from vllm_spark.distro.series.apply import Outcome

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-verbs."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, text: str, action: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.set_defaults(run=action)
        sub.add_argument("--patches", type=Path, metavar="DIR", help="another patches folder (default: the checkout's)")
        return sub

    lint = add("lint", "check the series against its rules; exit 6 when one is broken", _lint)
    lint.add_argument("--explain", metavar="RULE", help="print what a rule wants and why, for example P004")
    apply = add("apply", "write the patched release, all or nothing; exit 4 when a patch does not apply", _apply)
    apply.add_argument("--to", type=Path, metavar="DIR", required=True, help="a new folder, or one from an earlier run")
    out = add("export", "rewrite the patch files, byte-identical wherever nothing was changed", _export)
    out.add_argument("--from", type=Path, metavar="DIR", dest="tree", help="take the commits of a tree from `apply`")
    add("status", "list the patches, what they are for, and whether they apply", _status)
    prove = add("guards", "show that every guard is red without its patch; exit 6 when one is not", _guards)
    prove.add_argument("names", nargs="*", metavar="PATCH", help="patches to prove (default: all)")


def run(args: argparse.Namespace) -> int:
    """Run the sub-verb."""
    action: Callable[[argparse.Namespace], int] = args.run
    return action(args)


def _folder(args: argparse.Namespace) -> Path:
    given: Path | None = args.patches
    return given.absolute() if given else paths.repo_root() / "patches"


def _lint(args: argparse.Namespace) -> int:
    if args.explain:
        console.result(rules.get(args.explain).explain())
        return 0
    folder = store.survey(_folder(args))
    upstream = pins.load()
    source, _ = mirror.open_mirror(upstream)
    found = list(rules.check(rules.Context(folder, paths.repo_root(), source, upstream.version)))
    if not found:
        console.say(f"{len(folder.patches)} patches keep {len(rules.RULES)} rules")
        return 0
    for violation in found:
        console.result(str(violation))
    hint = f"vllm-spark series lint --explain {found[0].rule}"
    what = f"{found[0]}" if len(found) == 1 else f"{len(found)} violations, the first: {found[0]}"
    raise RuleError(what, where=str(folder.path), hint=hint)


def _apply(args: argparse.Namespace) -> int:
    upstream = pins.load()
    series = store.load(_folder(args))
    source, _ = mirror.open_mirror(upstream)
    try:
        outcomes = apply_series(series, source, upstream.version, args.to)
    except ApplyError as err:
        _show(err.outcomes, upstream.version)
        raise
    _show(outcomes, upstream.version)
    console.say(f"{args.to}: vLLM {upstream.version} with {len(outcomes)} patches, one commit each")
    return 0


def _export(args: argparse.Namespace) -> int:
    upstream = pins.load()
    folder = _folder(args)
    source, base = mirror.open_mirror(upstream)
    series = store.load(folder)
    if args.tree:
        files = export.from_tree(args.tree.absolute(), base)
    else:
        files = export.refreshed(series, source, upstream.version)
    dropped = {item.patch for item in ledger.load(folder / "ledger.toml").dropped}
    changed = export.write(folder, series, files, dropped)
    for path in changed:
        console.result(path)
    console.say(f"{len(files)} patches, {len(changed)} files changed")
    return 0


def _status(args: argparse.Namespace) -> int:
    upstream = pins.load()
    series = store.load(_folder(args))
    source, _ = mirror.open_mirror(upstream)
    with stack(source, upstream.version) as onto:
        outcomes = push_all(onto, series)
    rows = []
    for outcome in outcomes:
        meta, changes = outcome.patch.meta, outcome.patch.changes
        size = f"+{sum(len(change.added) for change in changes)} -{sum(change.removed for change in changes)}"
        when = " | ".join(meta.drop_when)
        rows.append([meta.name, outcome.state, meta.cls, meta.kind, str(len(changes)), size, when, meta.upstream])
    columns = ["patch", "state", "class", "kind", "files", "lines", "drop when", "upstream"]
    console.table(f"patches on vLLM {upstream.version}: {len(rows)}", columns, rows)
    return 0


def _guards(args: argparse.Namespace) -> int:
    upstream = pins.load()
    series = store.load(_folder(args))
    chosen = [series.get(name) for name in args.names] or list(series.patches)
    source, _ = mirror.open_mirror(upstream)
    tree = trees.tree_of(series, upstream)
    proofs = guards.prove(series, chosen, source, upstream.version, paths.repo_root(), tree)
    rows = [
        [
            proof.patch,
            proof.guard,
            proof.complete,
            proof.without,
            "holds" if proof.holds else "FAILS",
            proof.detail[:90],
        ]
        for proof in proofs
    ]
    columns = ["patch", "guard", "with all", "without it", "proof", "first message"]
    console.table(f"guards: {len(proofs)}", columns, rows)
    bad = [proof for proof in proofs if not proof.holds]
    if bad:
        what = f"{bad[0].guard} is {bad[0].complete} with all patches and {bad[0].without} without {bad[0].patch}"
        more = f" ({len(bad)} guards prove nothing)" if len(bad) > 1 else ""
        raise RuleError(what + more, where=bad[0].patch, hint="mend the guard: it must fail by assertion alone")
    return 0


def _show(outcomes: Sequence[Outcome], version: str) -> None:
    rows = [[outcome.patch.stem, outcome.state, _detail(outcome)] for outcome in outcomes]
    console.table(f"series on vLLM {version}", ["patch", "state", "detail"], rows)
    for outcome in outcomes:
        for failure in outcome.failures:
            console.result(f"{outcome.patch.path}: {failure}")
            console.result("\n".join(failure.text) + ("\n" if failure.text else ""))


def _detail(outcome: Outcome) -> str:
    if outcome.state == "skipped":
        return f"needs {', '.join(outcome.blocked_by)}"
    if outcome.state == "failed":
        return "see below"
    displaced = f"; displaced hunks: {len(outcome.offsets)}" if outcome.offsets else ""
    return ", ".join(outcome.files[:3]) + (" …" if len(outcome.files) > 3 else "") + displaced
