"""From wheels, index and bundle to a release that can be checked: manifest, reports, statement, notes, sums.

    manifest.json                 `manifest`
    provenance.json        `statement`; provenance.sigstore.json beside it where it is signed
    NOTES.md                      `notes`
    reports/                      audit and SBOM of each wheel, licences, vulnerabilities, and the lock
    SHA256SUMS                    every file above and both wheels; the index has its own

SHA256SUMS goes first and comes last: a folder without it is no release, whenever the run was stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_spark import console, paths
from vllm_spark.distro import profile as profiles
from vllm_spark.distro import sums
from vllm_spark.distro.bundle.verify import verify as verify_bundle
from vllm_spark.distro.image.report import read_report
from vllm_spark.distro.release import gather, licences, notes, sign, statement, vulnerabilities
from vllm_spark.distro.release import manifest as form
from vllm_spark.distro.series import ledger, store
from vllm_spark.distro.upstream import fetch, pins
from vllm_spark.distro.wheel.render import as_json
from vllm_spark.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.bundle.make import Contents
    from vllm_spark.distro.release.licences import Licence
    from vllm_spark.distro.upstream.pins import Upstream
    from vllm_spark.distro.wheel.audit import Audit

__all__ = ["BUNDLE", "MANIFEST", "NOTES", "REPORTS", "STATEMENT", "Options", "assemble", "write"]

MANIFEST = "manifest.json"
STATEMENT = "provenance.json"
BUNDLE = "provenance.sigstore.json"
NOTES = "NOTES.md"
REPORTS = "reports"


@dataclass(frozen=True)
class Options:
    """What a maintainer decides.

    Attributes:
        bundle: the bundle of this release: its lock is the release's, its wheels tell their licences.
        index: the index that lists the wheels.
        image: report of `image verify`; None for a release without one.
        previous: manifest of the release before, for the notes.
        accept: why packages that are vulnerable or unknown to the database may be released.
        osv_url: an OSV service to ask instead of PyPI.
        builder: URI of whoever runs this.
    """

    bundle: Path
    index: Path
    profile: str = "gb10-cu130"
    image: Path | None = None
    previous: Path | None = None
    accept: str = ""
    osv_url: str | None = None
    builder: str = "urn:vllm-spark:builder:local"


def assemble(folder: Path, options: Options) -> form.Manifest:
    """Make `folder`, which holds both wheels, a release.

    Raises:
        ConfigError: something is not there.
        ArtefactError: wheels, series, index, bundle or image do not belong together, or fail the audit.
        DecisionNeeded: known vulnerabilities, or packages that no database judged.
        ToolMissing, ProcessError, ResourceError: from the steps.
    """
    profile, upstream, series = profiles.load(options.profile), pins.load(), store.load()
    pair = gather.wheels(folder, upstream)
    digests = {wheel.name: fetch.sha256_of(wheel) for wheel in pair}
    listed = gather.index_entries(options.index, digests, upstream.package_version)
    # What takes seconds comes before the audit, which takes longer.
    image = _image(options.image, digests)
    patches = gather.patches(series, pair[0])
    with console.step("verify the bundle"):
        contents = _bundle(options.bundle, digests)
    counts, findings = _vulnerabilities(contents, upstream, options)
    said = licences.report(options.bundle, contents)
    with console.step("audit both wheels"):
        done = gather.audits(pair, upstream, profile, series)
    reports = _reports(done, options.bundle, said, findings)
    manifest = form.Manifest(
        format=form.FORMAT,
        project="vllm-spark",
        version=upstream.package_version,
        base=upstream.project,
        base_version=upstream.version,
        upstream=tuple(form.Input(pin.role, pin.name, pin.sha256) for pin in upstream.files),
        series=series.digest,
        patches=patches,
        source=gather.source(),
        toolchain=gather.tools(profile),
        files=(*_wheel_entries(pair, digests), *_report_entries(reports)),
        index=listed,
        audits=tuple(gather.audited(one) for one in done),
        vulnerabilities=counts,
        signature=f"signed by {sign.SIGNED}" if sign.identity() else sign.unsigned(),
        image=image,
    )
    before = _previous(options.previous)
    dropped = ledger.load(paths.repo_root() / "patches" / "ledger.toml").dropped
    return write(folder, manifest, reports, notes.render(manifest, before, dropped, said), options.builder)


def _vulnerabilities(
    contents: Contents, upstream: Upstream, options: Options
) -> tuple[form.Vulnerabilities, list[Any]]:
    stand_in = {upstream.project: upstream.version, "vllm-spark": None}
    with console.step("ask for known vulnerabilities"):
        asked = vulnerabilities.ask(contents, stand_in, osv_url=options.osv_url)
    return vulnerabilities.judge(asked, options.accept)


def _reports(
    done: tuple[Audit, Audit], bundle: Path, said: tuple[Licence, ...], findings: list[Any]
) -> dict[str, bytes]:
    """The files of `reports/` by name."""
    reports = {f"audit-{one.facts.project}.json": _json(as_json(one.facts)) for one in done}
    reports |= {f"sbom-{one.facts.project}.cdx.json": one.facts.sbom for one in done if one.facts.sbom}
    reports["lock.txt"] = (bundle / "lock.txt").read_bytes()
    reports["licences.json"] = _json(said)
    reports["vulnerabilities.json"] = _json(findings)
    return reports


def write(folder: Path, manifest: form.Manifest, reports: dict[str, bytes], text: bytes, builder: str) -> form.Manifest:
    """Put the release's files into `folder`; the last one makes it a release."""
    with paths.resource_errors(folder), paths.lock(folder / ".release.lock"):
        (folder / sums.NAME).unlink(missing_ok=True)
        (folder / BUNDLE).unlink(missing_ok=True)
        with paths.atomic_dir(folder / REPORTS) as fresh:
            for name, data in reports.items():
                (fresh / name).write_bytes(data)
                (fresh / name).chmod(0o644)
        described = form.dump(manifest)
        stated = statement.dump(statement.statement(manifest, fetch.sha256_hex(described), builder))
        for name, data in ((MANIFEST, described), (STATEMENT, stated), (NOTES, text)):
            paths.atomic_write(folder / name, data)
        if manifest.signature.startswith("signed"):
            sign.sign(folder / STATEMENT, folder / BUNDLE)
        names = [entry.path for entry in manifest.files] + [MANIFEST, STATEMENT, NOTES]
        names += [BUNDLE] if (folder / BUNDLE).exists() else []
        paths.atomic_write(folder / sums.NAME, sums.dump({name: fetch.sha256_of(folder / name) for name in names}))
    return manifest


def _bundle(bundle: Path, digests: dict[str, str]) -> Contents:
    if not bundle.is_dir():
        raise ConfigError("no such folder", where=str(bundle), hint="vllm-spark bundle make, or unpack")
    contents = verify_bundle(bundle)
    there = {one.name: one.sha256 for one in contents.wheels}
    for name, sha256 in digests.items():
        if there.get(name) != sha256:
            raise ArtefactError(f"holds another {name} than the release", where=str(bundle), hint="make it anew")
    return contents


def _wheel_entries(pair: tuple[Path, Path], digests: dict[str, str]) -> list[form.Entry]:
    return [form.Entry(wheel.name, "wheel", digests[wheel.name], wheel.stat().st_size) for wheel in pair]


_ROLES: dict[str, form.Role] = {"audit": "audit", "sbom": "sbom", "lock": "lock", "licences": "licences"}
_OBSERVED = ("lock", "licences", "vulnerabilities")


def _report_entries(reports: dict[str, bytes]) -> list[form.Entry]:
    found = []
    for name, data in sorted(reports.items()):
        role = _ROLES.get(name.split(".")[0].split("-")[0], "vulnerabilities")
        sha256 = fetch.sha256_hex(data)
        found.append(form.Entry(f"{REPORTS}/{name}", role, sha256, len(data), observed=role in _OBSERVED))
    return found


def _image(report: Path | None, digests: dict[str, str]) -> form.Image | None:
    if report is None:
        return None
    found = read_report(report)
    if found.wheels != digests:
        raise ArtefactError("the image was built from other wheels", where=str(report), hint="build the image anew")
    return form.Image(found.digest, found.base, found.platform, found.compressed, found.added)


def _previous(path: Path | None) -> form.Manifest | None:
    if path is None:
        return None
    if not path.is_file():
        raise ConfigError("no such file", where=str(path), hint="name the manifest.json of the release before")
    return form.parse(path.read_bytes(), str(path))


def _json(content: Any) -> bytes:  # noqa: ANN401 - whatever msgspec encodes
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"
