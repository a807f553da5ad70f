"""The report of a rebase: for people, for machines, for GitHub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_spark import paths
from vllm_spark.distro.rebase.report.annotations import notes
from vllm_spark.distro.rebase.report.html import html
from vllm_spark.distro.rebase.report.markdown import markdown
from vllm_spark.distro.rebase.report.model import Report, from_json, to_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Report", "from_json", "html", "markdown", "notes", "to_json", "write"]


def write(report: Report, folder: Path) -> None:
    """Write `report.md`, `report.json` and `report.html`."""
    paths.atomic_write(folder / "report.md", _clean(markdown(report)))
    paths.atomic_write(folder / "report.json", to_json(report))
    paths.atomic_write(folder / "report.html", _clean(html(report)))


def _clean(text: str) -> str:
    """Text that any reader takes: bytes of a file that are no UTF-8 become question marks."""
    return text.encode("utf-8", "replace").decode()
