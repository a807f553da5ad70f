"""The patched vLLM in repack mode: which patches reach the wheel, and why the others need not."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.distro.series import store
from vllm_spark.distro.series.apply import ApplyError, push_all, stack
from vllm_spark.distro.upstream import mirror
from vllm_spark.distro.wheel.archive import Wheel
from vllm_spark.distro.wheel.sbom import PatchEntry
from vllm_spark.errors import ArtefactError, PatchError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.series.apply import Outcome, Stack
    from vllm_spark.distro.series.store import Series
    from vllm_spark.distro.upstream.pins import Upstream

__all__ = ["Patched", "apply_for_wheel"]

# Said in the table, the SBOM and on the index's page; the audit (rule W003) is the proof that it refers to.
_NATIVE = "repack keeps upstream's compiled code, and the audit shows what the device finds in it"


@dataclass(frozen=True)
class Patched:
    """What the series makes of the official wheel.

    Attributes:
        series: the whole series; all of it applies to the source tree.
        replaced: new contents of members that upstream's wheel has.
        added: contents of members that it has not.
        entries: one line per patch for the SBOM.
    """

    series: Series
    replaced: dict[str, bytes]
    added: dict[str, bytes]
    entries: tuple[PatchEntry, ...]


def apply_for_wheel(upstream: Upstream, wheel: Path) -> Patched:
    """Apply the whole series to the sdist, and take the files of the Python patches for `wheel`.

    Raises:
        ApplyError: a patch does not apply; all are tried and nothing is kept.
        PatchError: a Python patch touches a file that no wheel holds, or deletes one.
        ArtefactError: sdist and wheel disagree about a file before the patch.
    """
    series = store.load()
    source, _ = mirror.open_mirror(upstream)
    with stack(source, upstream.version) as onto:
        outcomes = push_all(onto, series)
        if not all(outcome.ok for outcome in outcomes):
            raise ApplyError(outcomes)
        new = _contents(onto, outcomes)
        onto.rewind()
        old = {name: onto.content(name) for name in new}
    with Wheel(wheel) as archive:
        for name, data in old.items():
            if data is not None and (name not in archive.members or archive.read(name) != data):
                raise ArtefactError(
                    "differs from the sdist's file, so the patch was made for another text",
                    where=f"{wheel.name}: {name}",
                    hint="check the pins in patches/upstream.toml",
                )
    return Patched(
        series,
        {name: data for name, data in new.items() if old[name] is not None},
        {name: data for name, data in new.items() if old[name] is None},
        tuple(_entry(outcome) for outcome in outcomes),
    )


def _contents(onto: Stack, outcomes: list[Outcome]) -> dict[str, bytes]:
    new: dict[str, bytes] = {}
    for outcome in outcomes:
        if outcome.patch.meta.cls != "python":
            continue
        for name in outcome.files:
            data = onto.content(name)
            if data is None or not name.startswith("vllm/"):
                what = "deletes" if data is None else "touches"
                hint = "keep a python patch to files below vllm/ that stay"
                raise PatchError(
                    f"{what} {name}, which a repacked wheel cannot do", where=outcome.patch.path, hint=hint
                )
            new[name] = data
    return new


def _entry(outcome: Outcome) -> PatchEntry:
    meta = outcome.patch.meta
    applied = meta.cls == "python"
    return PatchEntry(
        name=meta.name,
        sha256=hashlib.sha256(outcome.patch.format()).hexdigest(),
        kind=meta.kind,
        patch_class=meta.cls,
        applied=applied,
        reason="" if applied else _NATIVE,
        links=tuple(word.rstrip(":") for word in meta.upstream.split() if word.startswith("http")),
    )
