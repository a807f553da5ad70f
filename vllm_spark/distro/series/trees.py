"""Patched trees kept in the cache, one for each state of base and series: the guards and the builds share them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from vllm_spark import console, paths
from vllm_spark.distro.series import store
from vllm_spark.distro.series.apply import apply_series
from vllm_spark.distro.upstream import mirror, pins

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.series.store import Series
    from vllm_spark.distro.upstream.pins import Upstream

__all__ = ["full_tree", "tree_of"]

_KEPT = 4  # trees of 0.15 GB each: the present one, and those that a run on another checkout may still read


def full_tree() -> Path:
    """The pinned release with the whole series of the checkout."""
    return tree_of(store.load(), pins.load())


def tree_of(series: Series, upstream: Upstream) -> Path:
    """The pinned release with a series; written on the first call for this pair."""
    folder = paths.cache_dir("trees")
    path = folder / f"{upstream.version}-{upstream.file('sdist').sha256[:8]}-{series.digest[:16]}"
    with paths.lock(folder / ".lock", wait=True):
        if not path.exists():
            source, _ = mirror.open_mirror(upstream)
            with console.step(f"apply {len(series.patches)} patches to {upstream.version}"):
                apply_series(series, source, upstream.version, path)
        path.touch()
        ages = sorted(folder.glob("*-*-*"), key=lambda tree: tree.stat().st_mtime, reverse=True)
        for old in ages[_KEPT:]:
            shutil.rmtree(old)
    return path
