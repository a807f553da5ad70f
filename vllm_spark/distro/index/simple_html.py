"""The pages that pip and uv read: HTML form of the simple repository API, version 1.4.

Sources: PEP 503 (links, names), 592 (yanked), 658 and 714 (metadata sidecars), 708 (tracks), 740 (provenance),
792 (status).
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vllm_spark.distro.index.facts import FileFact, ProjectFact

__all__ = ["API_VERSION", "FILES_FROM_PROJECT", "project_page", "root_page"]

API_VERSION = "1.4"
# From simple/<project>/ to the wheels; relative, so that a mirror of the folder works wherever it lies.
FILES_FROM_PROJECT = "../../files"


def root_page(projects: Iterable[ProjectFact]) -> bytes:
    """`simple/index.html`: one link per project."""
    links = [f'<a href="{project.name}/">{project.name}</a><br>' for project in projects]
    return _page("Simple index", [], links)


def project_page(project: ProjectFact, files: Sequence[FileFact]) -> bytes:
    """`simple/<project>/index.html`: one link per file, each with its SHA-256."""
    metas = [("pypi:tracks", url) for url in project.tracks]
    if project.status != "active":
        metas.append(("pypi:project-status", project.status))
        if project.status_reason:
            metas.append(("pypi:project-status-reason", project.status_reason))
    return _page(f"Links for {project.name}", metas, [_link(fact) for fact in files])


def _link(fact: FileFact) -> str:
    href = fact.url or f"{FILES_FROM_PROJECT}/{fact.quoted}"
    digest = f"sha256={fact.metadata_sha256}"
    attributes = {
        "href": f"{href}#sha256={fact.sha256}",
        "data-requires-python": fact.requires_python,
        "data-core-metadata": digest,
        "data-dist-info-metadata": digest,  # the older name of the same: pip before 23.2 knows no other
        "data-provenance": fact.provenance,
        "data-yanked": fact.yanked,
    }
    text = " ".join(f'{name}="{escape(value)}"' for name, value in attributes.items() if value is not None)
    return f"<a {text}>{fact.filename}</a><br>"


def _page(title: str, metas: Sequence[tuple[str, str]], body: Sequence[str]) -> bytes:
    head = [("pypi:repository-version", API_VERSION), *metas]
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        *(f'<meta name="{name}" content="{escape(value)}">' for name, value in head),
        f"<title>{title}</title>",
        "</head>",
        "<body>",
        f"<h1>{title}</h1>",
        *body,
        "</body>",
        "</html>",
    ]
    return ("\n".join(lines) + "\n").encode()
