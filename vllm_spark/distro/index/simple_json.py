"""The same as `simple_html` in the JSON form (PEP 691), for servers that can choose by the Accept header.

`size`, `upload-time` (PEP 700) and `tracks` (PEP 708) exist in this form only or first; a field is written only
where its value is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from vllm_spark.distro.index.simple_html import API_VERSION, FILES_FROM_PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vllm_spark.distro.index.facts import FileFact, ProjectFact

__all__ = ["CONTENT_TYPE", "project_page", "root_page"]

CONTENT_TYPE = "application/vnd.pypi.simple.v1+json"


def root_page(projects: Iterable[ProjectFact]) -> bytes:
    """`simple/index.json`."""
    return _encode({"meta": {"api-version": API_VERSION}, "projects": [{"name": project.name} for project in projects]})


def project_page(project: ProjectFact, files: Sequence[FileFact]) -> bytes:
    """`simple/<project>/index.json`."""
    meta: dict[str, Any] = {"api-version": API_VERSION}
    if project.tracks:
        meta["tracks"] = list(project.tracks)
    status: dict[str, str] = {"status": project.status}
    if project.status_reason:
        status["reason"] = project.status_reason
    return _encode(
        {
            "meta": meta,
            "name": project.name,
            "project-status": status,
            "versions": list(dict.fromkeys(fact.version for fact in files)),
            "files": [_file(fact) for fact in files],
        }
    )


def _file(fact: FileFact) -> dict[str, Any]:
    digest = {"sha256": fact.metadata_sha256}
    entry: dict[str, Any] = {
        "filename": fact.filename,
        "url": fact.url or f"{FILES_FROM_PROJECT}/{fact.quoted}",
        "hashes": {"sha256": fact.sha256},
        "size": fact.size,
        "core-metadata": digest,
        "dist-info-metadata": digest,
        "yanked": False if fact.yanked is None else fact.yanked,
    }
    optional = {
        "requires-python": fact.requires_python,
        "upload-time": fact.uploaded,
        "provenance": fact.provenance,
    }
    return entry | {name: value for name, value in optional.items() if value is not None}


def _encode(page: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(page), indent=1) + b"\n"
