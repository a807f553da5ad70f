"""`manifest.json`: what a release is made from and what is in it. docs/release-manifest.schema.json is its schema.

It holds nothing of the machine, the moment or the folder that a release is put together in, but the files that it
names as `observed`: those record what indexes and databases said that day, and are inputs rather than results.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from vllm_spark.distro.index.facts import Verdict  # noqa: TC001 - msgspec reads the annotations
from vllm_spark.errors import ArtefactError

__all__ = [
    "FORMAT",
    "Audited",
    "Entry",
    "Image",
    "Input",
    "Manifest",
    "Patch",
    "Source",
    "Toolchain",
    "Vulnerabilities",
    "dump",
    "parse",
    "schema",
]

FORMAT: Literal[1] = 1
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Path = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+/-]*$")]
Size = Annotated[int, msgspec.Meta(ge=0)]
Role = Literal["wheel", "sbom", "audit", "lock", "licences", "vulnerabilities", "notes"]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file below the release's folder. `observed` marks what depends on the day it was made."""

    path: Path
    role: Role
    sha256: Sha256
    size: Size
    observed: bool = False


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pinned file that was taken from a package index."""

    role: str
    name: str
    sha256: Sha256


class Patch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One patch of the series; `reason` says why it is not applied, where it is not."""

    name: str
    subject: str
    sha256: Sha256
    kind: str
    patch_class: Literal["python", "native"]
    upstream: str
    applied: bool
    reason: str = ""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Our own sources. `commit` is empty, or not the whole truth, where `clean` is false."""

    commit: str
    clean: bool


class Toolchain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What compiled the extension. `compiler` is the first line of the host compiler's --version."""

    profile: str
    compiler: str
    files: tuple[Input, ...]


class Audited(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of one wheel's audit: rules asked, violations found (none, or there is no release)."""

    wheel: Path
    rules: tuple[str, ...]
    verdicts: tuple[Verdict, ...]


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The container image. `added` is what it adds to the base and the wheels, in bytes."""

    digest: Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
    base: str
    platform: str
    compressed: Size
    added: int


class Vulnerabilities(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many locked packages the database knew (`judged`) or not, and how many entries were found.

    `accepted` is the maintainer's reason to release nevertheless.
    """

    judged: Size
    unjudged: Size
    found: Size
    accepted: str = ""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of `manifest.json`.

    Attributes:
        signature: whether the statement is signed by sigstore, or why it is not.
        index: SHA-256 of each of our files as the index lists it, by name; these never change.
    """

    format: Literal[1]
    project: str
    version: str
    base: str
    base_version: str
    upstream: tuple[Input, ...]
    series: Sha256
    patches: tuple[Patch, ...]
    source: Source
    toolchain: Toolchain
    files: tuple[Entry, ...]
    index: dict[str, Sha256]
    audits: tuple[Audited, ...]
    vulnerabilities: Vulnerabilities
    signature: str
    image: Image | None = None

    def of(self, role: Role) -> tuple[Entry, ...]:
        """The files of one role."""
        return tuple(entry for entry in self.files if entry.role == role)


def dump(manifest: Manifest) -> bytes:
    """The file's bytes."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def parse(data: bytes, where: str) -> Manifest:
    """Read what `dump` wrote.

    Raises:
        ArtefactError: it is no manifest of this format.
    """
    try:
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as err:
        raise ArtefactError(f"not a release manifest: {err}", where=where, hint="fetch the release again") from err


def schema() -> dict[str, Any]:
    """The JSON schema of `manifest.json`."""
    found = msgspec.json.schema(Manifest)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "vllm-spark release manifest"} | found
