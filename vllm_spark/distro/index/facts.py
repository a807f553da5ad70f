"""What the index knows: facts of wheels (see `reading`), and what a release says about itself.

The structs here are the lines of `index.jsonl` (see `state`) and the only input of every page.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from packaging.version import Version

from vllm_spark.errors import ConfigError

__all__ = [
    "FileFact",
    "PatchNote",
    "ProjectFact",
    "ReleaseFact",
    "SiteFact",
    "Verdict",
    "timestamp",
]

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
# `+` and `!` belong to versions; a slash, a leading dot or a blank never does.
FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl$")]
ProjectName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
WebUrl = Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s\"'<>\\]+$")]
UtcTime = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")]
Reason = Annotated[str, msgspec.Meta(pattern=r"\S")]


class SiteFact(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="site", tag_field="kind"
):
    """The index as a whole. `base_url` is the public address of the folder, without a slash at its end."""

    format: Literal[1]
    base_url: WebUrl | None = None


class ProjectFact(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="project", tag_field="kind"
):
    """What holds for every file of a project.

    Attributes:
        name: the normalised name.
        tracks: addresses of the same project on other indexes, which this one extends (PEP 708).
        status: the project's state (PEP 792); `quarantined` needs a server that withholds files, so it is not ours.
        status_reason: for people; only with a status other than active.
    """

    name: ProjectName
    tracks: tuple[WebUrl, ...] = ()
    status: Literal["active", "archived", "deprecated"] = "active"
    status_reason: str | None = None


class FileFact(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="file", tag_field="kind"
):
    """One wheel.

    Attributes:
        project: the normalised name of the project.
        version: the normalised version.
        metadata_sha256: digest of the METADATA member, which the sidecar repeats byte by byte (PEP 658).
        exact: (project, version) of each requirement without a marker that admits one version only.
        uploaded: when the release was made, as the release says it; never the time of the build.
        yanked: why the file should not be chosen any more (PEP 592); None while it may be.
        url: where the bytes are, if not in `files/` beside the pages.
        provenance: address of the attestations (PEP 740).
    """

    project: ProjectName
    version: str
    filename: FileName
    sha256: Sha256
    size: Annotated[int, msgspec.Meta(gt=0)]
    metadata_sha256: Sha256
    requires_python: str | None = None
    exact: tuple[tuple[ProjectName, str], ...] = ()
    uploaded: UtcTime | None = None
    yanked: Reason | None = None
    url: WebUrl | None = None
    provenance: WebUrl | None = None

    @property
    def quoted(self) -> str:
        """The file name as it stands in a URL; the `+` of a local version must be `%2B`."""
        return quote(self.filename, safe="")

    @property
    def order(self) -> tuple[str, Version, str]:
        """Sorts files by project, then by version as versions go."""
        return self.project, Version(self.version), self.filename


class PatchNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A patch that the release carries; `applied` is False where the proof says that none is needed."""

    name: str
    summary: str
    upstream: WebUrl | None = None
    applied: bool = True
    remark: str = ""


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a device can do with one extension, as the audit found it."""

    extension: str
    verdict: Literal["native", "jit", "partly", "absent"]
    images: str
    remark: str = ""


class ReleaseFact(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="release", tag_field="kind"
):
    """What people want to know of a release; shown on the landing page and kept for ever.

    Attributes:
        version: the version of `project`.
        vllm: the upstream release that it is made from.
        device: what the verdicts are about, such as "GB10 (compute capability 12.1)".
    """

    project: ProjectName
    version: str
    vllm: str
    cuda: str
    torch: str
    python: str
    date: Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    device: str = "GB10 (compute capability 12.1)"
    patches: tuple[PatchNote, ...] = ()
    verdicts: tuple[Verdict, ...] = ()


def timestamp(when: datetime) -> str:
    """`when` as the index API writes it.

    Raises:
        ConfigError: it has no time zone, so nobody can tell which moment is meant.
    """
    if when.tzinfo is None:
        raise ConfigError("a time without a zone", where=str(when), hint="add Z or an offset such as +00:00")
    return when.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
