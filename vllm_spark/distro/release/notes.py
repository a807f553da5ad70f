"""The release notes: from the series, the audit and the manifest; nothing in them is written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vllm_spark.distro.release.licences import Licence
    from vllm_spark.distro.release.manifest import Manifest, Patch
    from vllm_spark.distro.series.ledger import Dropped

__all__ = ["render"]

_VERDICTS = {
    "native": "runs",
    "jit": "compiled by the driver at first use",
    "partly": "mixed: see right",
    "absent": "not at all",
}


def render(
    manifest: Manifest, previous: Manifest | None, dropped: Sequence[Dropped], licences: Sequence[Licence]
) -> bytes:
    """Markdown for people.

    Args:
        previous: the release before; None says nothing of what is new.
        dropped: the ledger: patches that the series no longer has, with the reasons.
    """
    title = f"# {manifest.project} {manifest.version}"
    base = f"On {manifest.base} {manifest.base_version}. {_built(manifest)}"
    sections = [title, base, *_patches(manifest, previous, dropped), *_device(manifest), *_supply(manifest, licences)]
    return ("\n\n".join(sections) + "\n").encode()


def _built(manifest: Manifest) -> str:
    commit = manifest.source.commit or "unknown"
    state = "" if manifest.source.clean else ", with changes that were not committed"
    return f"Built from commit {commit}{state}; profile {manifest.toolchain.profile}, {manifest.toolchain.compiler}."


def _patches(manifest: Manifest, previous: Manifest | None, dropped: Sequence[Dropped]) -> Iterator[str]:
    before = {patch.name: patch for patch in previous.patches} if previous else {}
    now = {patch.name for patch in manifest.patches}
    new = [patch for patch in manifest.patches if patch.name not in before]
    changed = [
        patch for patch in manifest.patches if patch.name in before and before[patch.name].sha256 != patch.sha256
    ]
    gone = [entry for entry in dropped if entry.patch in before and entry.patch not in now]
    landed = [entry for entry in gone if entry.upstream]
    lost = [entry for entry in gone if not entry.upstream]
    yield f"## Patches\n\n{len(manifest.patches)} carried, {sum(patch.applied for patch in manifest.patches)} applied."
    if previous is None:
        yield _listed("Carried", manifest.patches)
        return
    yield _listed(f"New since {previous.version}", new)
    yield _listed("Changed", changed)
    yield _listed("Carried on", [patch for patch in manifest.patches if patch not in (*new, *changed)])
    yield "### Landed upstream\n\n" + _lines([f"`{one.patch}`: {one.why} ({one.upstream})" for one in landed])
    yield "### Dropped\n\n" + _lines([f"`{one.patch}`: {one.why}" for one in lost])
    silent = sorted(before.keys() - now - {entry.patch for entry in gone})
    if silent:
        yield "### Gone without a line in the ledger\n\n" + _lines([f"`{name}`" for name in silent])


def _listed(title: str, patches: Sequence[Patch]) -> str:
    return f"### {title}\n\n" + _lines(
        [
            f"`{patch.name}`: {patch.subject}. Upstream: {patch.upstream}."
            + ("" if patch.applied else f" Not applied: {patch.reason}.")
            for patch in patches
        ]
    )


def _lines(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items) or "none"


def _device(manifest: Manifest) -> Iterator[str]:
    rows = [
        f"| `{verdict.extension}` | {_VERDICTS[verdict.verdict]} | {verdict.images} | {verdict.remark} |"
        for audited in manifest.audits
        for verdict in audited.verdicts
    ]
    rules = ", ".join(dict.fromkeys(rule for audited in manifest.audits for rule in audited.rules))
    head = "| extension | what a GB10 can load | images | |\n|---|---|---|---|\n"
    yield f"## On the device\n\nBoth wheels keep rules {rules}.\n\n{head}" + "\n".join(rows)


def _supply(manifest: Manifest, licences: Sequence[Licence]) -> Iterator[str]:
    files = [f"| `{entry.path}` | {entry.size / 2**20:.1f} | `{entry.sha256}` |" for entry in manifest.of("wheel")]
    yield "## Files\n\n| file | MiB | SHA-256 |\n|---|---|---|\n" + "\n".join(files)
    image = manifest.image
    if image:
        yield (
            f"Image: `{image.digest}` for {image.platform}, {image.compressed / 2**20:.0f} MiB compressed, on "
            f"`{image.base}`; it adds {image.added / 2**20:.0f} MiB to base and wheels."
        )
    found = manifest.vulnerabilities
    silent = sum(one.said_in == "nothing" for one in licences)
    yield "## Supply chain\n\n" + _lines(
        [
            f"Provenance: `provenance.json`, {manifest.signature}.",
            f"Known vulnerabilities: {found.found}, of {found.judged} packages that the database knows; "
            f"{found.unjudged} it does not." + (f" Accepted: {found.accepted}" if found.accepted else ""),
            f"Licences: {len(licences)} packages in `reports/licences.json`; {silent} say nothing in their metadata.",
            f"Series: `{manifest.series}`.",
            "To check all of it: `vllm-spark release verify DIR`. To go back: `vllm-spark index rollback INDEX`.",
        ]
    )
