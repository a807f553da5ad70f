"""Is a folder the release that it says it is? Nothing is fetched, and no checkout is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from packaging.utils import canonicalize_name

from vllm_spark.distro import sums
from vllm_spark.distro.bundle.lock import read_lock
from vllm_spark.distro.index import folder as index_folder
from vllm_spark.distro.index.state import load as load_index
from vllm_spark.distro.release import manifest as form
from vllm_spark.distro.release import sign, statement
from vllm_spark.distro.release.assemble import BUNDLE, MANIFEST, NOTES, REPORTS, STATEMENT
from vllm_spark.distro.upstream.fetch import sha256_hex, sha256_of
from vllm_spark.distro.wheel.archive import Wheel
from vllm_spark.distro.wheel.record import verify_record
from vllm_spark.distro.wheel.repack import SBOM_NAME
from vllm_spark.errors import ArtefactError, ConfigError, SparkError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Verified", "verify"]

_OWN = (MANIFEST, STATEMENT, NOTES)


@dataclass(frozen=True)
class Verified:
    """A sound release, or what is wrong with it."""

    manifest: form.Manifest
    files: int
    problems: tuple[str, ...]


def verify(folder: Path, *, index: Path | None = None, signer: str = "", issuer: str = "") -> Verified:
    """Compare everything in a release's folder with everything else in it.

    Args:
        index: the index that should list the wheels; None for `folder/index`, if it is there.
        signer: the identity that must have signed; empty asks for no signature.
        issuer: who vouches for `signer`.

    Raises:
        ConfigError: there is no such folder.
        ArtefactError: it is no release, or its manifest cannot be read; or the signature is not the one demanded.
        ToolMissing: a signature is to be checked, and sigstore is not installed.
    """
    if not folder.is_dir():
        raise ConfigError("no such folder", where=str(folder))
    for name in (sums.NAME, MANIFEST):
        if not (folder / name).is_file():
            hint = f"fetch it again, or run: vllm-spark release assemble {folder}"
            raise ArtefactError(f"{name} is missing, so this is no whole release", where=str(folder), hint=hint)
    listed = sums.parse((folder / sums.NAME).read_bytes(), str(folder / sums.NAME))
    manifest = form.parse((folder / MANIFEST).read_bytes(), str(folder / MANIFEST))
    index = index or (folder / "index" if (folder / "index").is_dir() else None)
    problems = [
        *_files(folder, listed, manifest),
        *_statement(folder, manifest),
        *_wheels(folder, manifest),
        *_lock(folder, manifest),
        *(_index(index, manifest) if index else ()),
    ]
    if signer:
        sign.verify(folder / STATEMENT, folder / BUNDLE, signer=signer, issuer=issuer)
    return Verified(manifest, len(listed), tuple(problems))


def _files(folder: Path, listed: dict[str, str], manifest: form.Manifest) -> Iterator[str]:
    """Sums against files, manifest against sums."""
    here = [path for path in folder.iterdir() if path.name != sums.NAME and not path.name.startswith(".")]
    here += list((folder / REPORTS).rglob("*"))
    links = [path for path in here if path.is_symlink()]
    yield from (f"{path.relative_to(folder)}: is a symbolic link" for path in links)
    files = [path for path in here if path.is_file() and path not in links]
    there = {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}
    yield from sums.differences(listed, there)
    told = {entry.path: entry.sha256 for entry in manifest.files}
    for path in sorted(listed.keys() - told.keys() - {*_OWN, BUNDLE}):
        yield f"{path}: not in {MANIFEST}"
    for path, sha256 in told.items():
        if listed.get(path) != sha256:
            yield f"{path}: {sums.NAME} and {MANIFEST} disagree"


def _statement(folder: Path, manifest: form.Manifest) -> Iterator[str]:
    path = folder / STATEMENT
    try:
        found = msgspec.json.decode(path.read_bytes())
        builder = str(found["predicate"]["runDetails"]["builder"]["id"])
    except (OSError, msgspec.DecodeError, LookupError, TypeError) as err:
        yield f"{STATEMENT}: cannot be read: {err}"
        return
    if statement.statement(manifest, sha256_hex((folder / MANIFEST).read_bytes()), builder) != found:
        yield f"{STATEMENT}: does not follow from {MANIFEST}"
    if manifest.signature.startswith("signed") and not (folder / BUNDLE).is_file():
        yield f"{BUNDLE}: missing, but {MANIFEST} says {manifest.signature}"


def _wheels(folder: Path, manifest: form.Manifest) -> Iterator[str]:
    """Each wheel opens safely, agrees with its own RECORD, and carries the SBOM that lies beside it."""
    for entry in manifest.of("wheel"):
        path = folder / entry.path
        try:
            verify_record(path)
            with Wheel(path) as wheel:
                name = f"{wheel.dist_info}/{SBOM_NAME}"
                inner = wheel.read(name) if name in wheel.members else None
                beside = folder / REPORTS / f"sbom-{canonicalize_name(wheel.name.distribution)}.cdx.json"
        except SparkError as err:
            yield f"{entry.path}: {err.what}"
            continue
        if inner is not None and (not beside.is_file() or beside.read_bytes() != inner):
            yield f"{beside.relative_to(folder)}: not the SBOM inside {entry.path}"


def _lock(folder: Path, manifest: form.Manifest) -> Iterator[str]:
    wheels = {entry.sha256 for entry in manifest.of("wheel")}
    for entry in manifest.of("lock"):
        try:
            locked = {sha256 for _version, sha256 in read_lock(folder / entry.path).values()}
        except ConfigError as err:
            yield f"{entry.path}: {err.what}"
            continue
        if not wheels <= locked:
            yield f"{entry.path}: locks other wheels than the release's"


def _index(index: Path, manifest: form.Manifest) -> Iterator[str]:
    """Our entries have not changed since, pages are untouched; other releases are the index's own business."""
    yield from (f"{index.name}/{edit}" for edit in index_folder.edits(index))
    facts = {fact.filename: fact for fact in load_index(index).files}
    for name, sha256 in manifest.index.items():
        fact, path = facts.get(name), index / "files" / name
        if fact is None:
            yield f"{index.name}: does not list {name}"
        elif fact.sha256 != sha256:
            yield f"{index.name}: lists {name} with another SHA-256"
        elif fact.url is None and (not path.is_file() or sha256_of(path) != sha256):
            yield f"{index.name}/files/{name}: missing or altered"
