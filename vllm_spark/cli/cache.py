"""`vllm-spark cache`: the quantised weights that earlier loads have kept."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.errors import ConfigError, IntegrityError, NothingToDo
from vllm_spark.runtime.quant import cache

if TYPE_CHECKING:
    import argparse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-verbs."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    verbs.add_parser("list", help="entries, the most recently used first")
    verify = verbs.add_parser("verify", help="read every entry and compare its checksums")
    verify.add_argument("--remove", action="store_true", help="delete entries that are damaged")
    prune = verbs.add_parser("prune", help="delete the least recently used entries, and leftovers of killed runs")
    which = prune.add_mutually_exclusive_group(required=True)
    which.add_argument("--keep-gib", type=float, help="until all entries fit in that many GiB; 0 deletes all")
    which.add_argument("--entry", help="only this one (the beginning of its key)")


def run(args: argparse.Namespace) -> int:
    """Do the sub-verb."""
    actions = {"list": _list, "verify": _verify, "prune": _prune}
    return actions[args.action](args)


def _list(_args: argparse.Namespace) -> int:
    found = cache.entries(cache.root())
    rows = [[entry.key[:12], f"{entry.nbytes / 2**30:.2f}", _age(entry.used), entry.model] for entry in found]
    console.table(str(cache.root()), ["entry", "GiB", "last used", "model"], rows)
    return 0


def _age(used: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(used))


def _verify(args: argparse.Namespace) -> int:
    bad = 0
    for entry in cache.entries(cache.root()):
        problems = cache.verify(entry)
        console.result(f"{entry.key[:12]}  {'damaged' if problems else 'whole'}  {entry.model}")
        for problem in problems[:5]:
            console.result(f"    {problem}")
        if problems:
            bad += 1
            if args.remove:
                cache.remove(entry)
    if bad and not args.remove:
        raise IntegrityError(f"{bad} damaged", where=str(cache.root()), hint="vllm-spark cache verify --remove")
    return 0


def _prune(args: argparse.Namespace) -> int:
    folder = cache.root()
    if args.entry is None:
        if args.keep_gib < 0:
            raise ConfigError(f"{args.keep_gib} GiB", where="--keep-gib", hint="give 0 or more")
        gone = cache.prune(folder, int(args.keep_gib * 2**30))
    else:
        gone = [entry for entry in cache.entries(folder) if entry.key.startswith(args.entry)]
        if len(gone) != 1:
            raise ConfigError(f"{len(gone)} entries begin so", where=args.entry, hint="vllm-spark cache list")
        cache.remove(gone[0])
    for entry in gone:
        console.result(f"{entry.key[:12]}  {entry.nbytes / 2**30:.2f} GiB  {entry.model}")
    if not gone:
        raise NothingToDo("no entry had to go", where=str(folder))
    return 0
