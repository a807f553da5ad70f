"""Every generated file of the folder, as a pure function of the facts."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from vllm_spark.distro.index import landing, simple_html, simple_json
from vllm_spark.distro.index.state import STATE_FILE, State, dump

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["render", "sums"]


def render(state: State) -> dict[str, bytes]:
    """Every generated page by its path below the folder, the state among them: a pure function of the facts."""
    pages = {
        "simple/index.html": simple_html.root_page(state.projects),
        "simple/index.json": simple_json.root_page(state.projects),
    }
    for project in state.projects:
        files = state.of(project.name)
        pages[f"simple/{project.name}/index.html"] = simple_html.project_page(project, files)
        pages[f"simple/{project.name}/index.json"] = simple_json.project_page(project, files)
    return pages | {"index.html": landing.page(state), STATE_FILE: dump(state)}


def sums(state: State, pages: Mapping[str, bytes]) -> bytes:
    """The lines of `SHA256SUMS`, as coreutils writes them."""
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in pages.items()}
    for fact in state.files:
        digests[f"files/{fact.filename}"] = fact.sha256
        digests[f"files/{fact.filename}.metadata"] = fact.metadata_sha256
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items())).encode()
