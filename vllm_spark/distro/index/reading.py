"""Facts from wheels. A wheel that cannot be read, or whose name and METADATA disagree, gives none."""

from __future__ import annotations

import hashlib
import zipfile
from email import policy
from email.parser import BytesParser
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from vllm_spark.distro.index.facts import FileFact
from vllm_spark.distro.upstream.fetch import sha256_of
from vllm_spark.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_metadata", "read_wheel"]

# METADATA carries the README: vLLM's is 40 kB. A hundred times that is an attack or an accident.
_METADATA_LIMIT = 4 << 20


def read_metadata(wheel: Path) -> bytes:
    """The METADATA member of a wheel, byte by byte.

    Raises:
        ArtefactError: no zip, no or several METADATA, an absurd size, or a member that does not decompress.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [
                info
                for info in archive.infolist()
                if len(parts := PurePosixPath(info.filename).parts) == 2
                and parts[0].endswith(".dist-info")
                and parts[1] == "METADATA"
            ]
            if len(found) != 1:
                raise ArtefactError(f"{len(found)} METADATA members, one expected", where=str(wheel))
            if found[0].file_size > _METADATA_LIMIT:
                raise ArtefactError(f"METADATA claims {found[0].file_size} bytes", where=str(wheel))
            return archive.read(found[0])
    except zipfile.BadZipFile as err:
        raise ArtefactError(f"not a whole wheel: {err}", where=str(wheel), hint="build or fetch it again") from err


def read_wheel(wheel: Path) -> tuple[FileFact, bytes]:
    """The facts of a wheel, as far as it tells them itself, and its METADATA.

    Raises:
        ArtefactError: it is no wheel, or its name and its METADATA disagree.
        ConfigError: there is no such file.
    """
    if not wheel.is_file():
        raise ConfigError("no such file", where=str(wheel), hint="name the wheels that were built")
    metadata = read_metadata(wheel)
    project, version, requires_python, exact = _described(wheel.name, metadata)
    record = {
        "kind": "file",
        "project": project,
        "version": version,
        "filename": wheel.name,
        "sha256": sha256_of(wheel),
        "size": wheel.stat().st_size,
        "metadata_sha256": hashlib.sha256(metadata).hexdigest(),
        "requires_python": requires_python,
        "exact": exact,
    }
    try:
        return msgspec.convert(record, FileFact), metadata
    except msgspec.ValidationError as err:
        raise ArtefactError(f"cannot be listed: {err}", where=wheel.name) from err


def _described(name: str, metadata: bytes) -> tuple[str, str, str | None, tuple[tuple[str, str], ...]]:
    """Project, version, Requires-Python and exact requirements, once file name and METADATA agree."""
    headers = BytesParser(policy=policy.compat32).parsebytes(metadata, headersonly=True)
    try:
        project, version, _build, _tags = parse_wheel_filename(name)
        inner = canonicalize_name(headers["Name"] or ""), Version(headers["Version"] or "")
        requires_python: str | None = headers["Requires-Python"]
        SpecifierSet(requires_python or "")
        exact = _exact(headers.get_all("Requires-Dist") or [])
    except (InvalidWheelFilename, InvalidVersion, InvalidSpecifier, InvalidRequirement) as err:
        raise ArtefactError(str(err), where=name, hint="vllm-spark wheel audit names every fault") from err
    if inner != (project, version):
        what = f"the file name says {project} {version}, METADATA says {inner[0]} {inner[1]}"
        raise ArtefactError(what, where=name, hint="build the wheel again; a wheel cannot be renamed")
    return project, str(version), requires_python, exact


def _exact(lines: list[str]) -> tuple[tuple[str, str], ...]:
    pins = {}
    for requirement in map(Requirement, lines):
        specifiers = list(requirement.specifier)
        if requirement.marker is None and len(specifiers) == 1:
            only = specifiers[0]
            if only.operator == "==" and not only.version.endswith(".*"):
                pins[canonicalize_name(requirement.name)] = str(Version(only.version))
    return tuple(sorted(pins.items()))
