"""How every benchmark reports: one table for people, one JSON file that says on what it was measured."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import resource
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_spark import console, paths

__all__ = ["Figure", "machine", "report"]


@dataclass(frozen=True)
class Figure:
    """One measured value, and the promise that it stands against ("" where there is none)."""

    name: str
    value: float
    unit: str
    promise: str = ""
    holds: bool = True


def machine() -> dict[str, str | int]:
    """What the figures of this process were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "machine": platform.machine(),
        "cpu": model,
        "cores": os.cpu_count() or 0,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def report(name: str, figures: list[Figure]) -> int:
    """Print the figures, write `out/bench/NAME.json`, and return 1 if a promise is broken."""
    rows = [
        (figure.name, f"{figure.value:.4g} {figure.unit}".strip(), figure.promise, "" if figure.holds else "BROKEN")
        for figure in figures
    ]
    where = machine()
    console.table(
        f"{name} on {where['cores']} x {where['cpu']}, {where['date']}", ("figure", "value", "promise", ""), rows
    )
    target = paths.repo_root() / "out" / "bench" / f"{name}.json"
    document = {"benchmark": name, "on": where, "figures": [asdict(figure) for figure in figures]}
    paths.atomic_write(target, json.dumps(document, indent=2) + "\n")
    return 0 if all(figure.holds for figure in figures) else 1
