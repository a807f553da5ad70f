"""The page for people: one HTML file, its style and script inside, no request to anywhere."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from packaging.utils import parse_wheel_filename

from vllm_spark.distro.index import lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_spark.distro.index.facts import FileFact, PatchNote, ReleaseFact, Verdict
    from vllm_spark.distro.index.state import State

__all__ = ["page"]

_VERDICTS = {
    "native": ("good", "runs natively"),
    "jit": ("good", "compiled on first use (JIT)"),
    "partly": ("bad", "in part"),
    "absent": ("bad", "cannot be loaded"),
}
_UNKNOWN = "not recorded"


def page(state: State) -> bytes:
    """`index.html` of the folder: how to install the current release, what is in it, and all releases."""
    newest = lines.current(state)
    described = {fact.version: fact for fact in state.releases if fact.project == lines.MAIN}
    body = [_install(state, newest)] if newest else ["<p>No release can be installed from here at this time.</p>"]
    if newest in described:
        release = described[newest]
        body += [_verdicts(release), _patches(release)]
    body.append(_versions(state, described))
    return _document("\n".join(body)).encode()


def _install(state: State, version: str) -> str:
    files = lines.members(state, version)
    text = lines.install(state.site.base_url or "INDEX", files)
    here = "" if state.site.base_url else " data-here"
    tags = sorted({tag.platform for fact in files for tag in parse_wheel_filename(fact.filename)[3]})
    blocks = [
        f'<figure><figcaption>{name} <button type="button" hidden data-copies="line-{name}"'
        f' aria-label="Copy the lines for {name}">Copy</button></figcaption>'
        f'<pre id="line-{name}" tabindex="0" aria-label="Lines for {name}"{here}>{escape(line)}</pre></figure>'
        for name, line in (("uv", text.uv), ("pip", text.pip))
    ]
    return (
        f'<h2 id="install">Install {escape(version)}</h2>\n'
        f"<p>Platforms: {', '.join(f'<code>{escape(tag)}</code>' for tag in tags)}.</p>\n"
        "<p>The first command takes our wheels from this index alone and checks their hashes; the second adds what"
        " they depend on. A package of the same name elsewhere cannot take their place.</p>\n" + "\n".join(blocks)
    )


def _verdicts(release: ReleaseFact) -> str:
    if not release.verdicts:
        return ""
    rows = [_verdict(verdict) for verdict in release.verdicts]
    heads = ("Extension", "Verdict", "Machine code in it", "Remark")
    caption = f"Found by reading the wheels, not by running them on a {release.device}."
    return f'<h2 id="verdicts">What a {escape(release.device)} can load</h2>\n' + _table(caption, heads, rows)


def _verdict(verdict: Verdict) -> Sequence[str]:
    kind, text = _VERDICTS[verdict.verdict]
    cells = f"<code>{escape(verdict.extension)}</code>", f'<span class="{kind}">{text}</span>'
    return *cells, escape(verdict.images), escape(verdict.remark)


def _patches(release: ReleaseFact) -> str:
    if not release.patches:
        return ""
    rows = [_patch(patch) for patch in release.patches]
    heads = ("Patch", "What it does", "In this release", "Upstream")
    return '<h2 id="patches">Patches</h2>\n' + _table(f"On vLLM {release.vllm}.", heads, rows)


def _patch(patch: PatchNote) -> Sequence[str]:
    applied = "applied" if patch.applied else "not applied"
    remark = f"{applied}: {patch.remark}" if patch.remark else applied
    link = "ours alone"
    if patch.upstream:
        name = patch.upstream.partition("://")[2].removeprefix("www.")
        link = f'<a href="{escape(patch.upstream)}" rel="noreferrer">{escape(name)}</a>'
    return f"<code>{escape(patch.name)}</code>", escape(patch.summary), escape(remark), link


def _versions(state: State, described: dict[str, ReleaseFact]) -> str:
    rows = []
    for version, yanked in reversed(lines.versions(state).items()):
        release = described.get(version)
        known = (release.vllm, release.cuda, release.torch, release.python) if release else (_UNKNOWN,) * 4
        note = f'<span class="bad">yanked: {escape(yanked)}</span>' if yanked else (release and release.date) or ""
        files = "<br>".join(_download(fact) for fact in lines.members(state, version))
        rows.append((escape(version), *map(escape, known), note, files))
    heads = ("Version", "vLLM", "CUDA", "torch", "Python", "Note", "Files")
    caption = "Every release stays; a yanked one installs only if you name it exactly."
    return '<h2 id="versions">All releases</h2>\n' + _table(caption, heads, rows)


def _download(fact: FileFact) -> str:
    href = fact.url or f"files/{fact.quoted}"
    return f'<a href="{escape(href)}">{escape(fact.filename)}</a> ({fact.size / 2**20:.1f} MiB)'


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose rows become blocks on a phone, each cell after its column's name.

    The roles repeat what the tags say, because browsers forget the latter once a cell is laid out as a block.
    """
    head = "".join(f'<th role="columnheader" scope="col">{name}</th>' for name in heads)
    body = "\n".join(
        f'<tr role="row"><th role="rowheader" scope="row">{row[0]}</th>'
        + "".join(
            f'<td role="cell" data-label="{name}">{cell}</td>' if cell else '<td role="cell"></td>'
            for name, cell in zip(heads[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="stack" role="table"><caption>{escape(caption)}</caption>\n'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{body}\n</tbody></table></div>'
    )


def _document(body: str) -> str:
    style, script = (_asset(name) for name in ("landing.css", "landing.js"))
    policy = f"default-src 'none'; style-src '{_source(style)}'; script-src '{_source(script)}'; base-uri 'none'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>vllm-spark: package index</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header><h1>vllm-spark</h1>
<p>vLLM for NVIDIA DGX Spark, as wheels for pip and uv.</p></header>
<main id="main">
{body}
</main>
<footer>
<p>For tools: <a href="simple/">simple/</a> (HTML and JSON), <a href="index.jsonl">index.jsonl</a>,
<a href="SHA256SUMS">SHA256SUMS</a>.</p>
</footer>
<p id="said" class="hidden" role="status" aria-live="polite"></p>
<script>{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """How a Content-Security-Policy names an inline block: by its hash, so that no other can run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
