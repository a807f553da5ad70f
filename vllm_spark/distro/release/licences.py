"""Under which licence each package of a bundle is, as its own metadata says."""

from __future__ import annotations

from email import policy
from email.parser import BytesParser
from typing import TYPE_CHECKING, Literal

import msgspec

from vllm_spark.distro.index.reading import read_metadata

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.bundle.make import Contents

__all__ = ["Licence", "licence_of", "report"]

_LONGEST = 80  # characters: beyond it, the License field holds a text and not a name
_CLASSIFIER = "License :: "


class Licence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One package. `said_in` is the metadata field that says it; with "nothing", a person must look."""

    project: str
    version: str
    licence: str
    said_in: Literal["License-Expression", "License", "Classifier", "License-File", "nothing"]


def report(bundle: Path, contents: Contents) -> tuple[Licence, ...]:
    """Read the metadata of every wheel of a verified bundle.

    Raises:
        ArtefactError: a file is no wheel.
    """
    return tuple(
        licence_of(one.project, one.version, read_metadata(bundle / "wheels" / one.name)) for one in contents.wheels
    )


def licence_of(project: str, version: str, metadata: bytes) -> Licence:
    """What METADATA says, from the most to the least precise field."""
    headers = BytesParser(policy=policy.compat32).parsebytes(metadata, headersonly=True)
    expression = str(headers["License-Expression"] or "").strip()
    field = " ".join(str(headers["License"] or "").split())
    classifiers = [str(line) for line in headers.get_all("Classifier") or [] if str(line).startswith(_CLASSIFIER)]
    files = headers.get_all("License-File") or []
    if expression:
        return Licence(project, version, expression, "License-Expression")
    if field and field.upper() != "UNKNOWN" and len(field) <= _LONGEST:
        return Licence(project, version, field, "License")
    if classifiers:
        names = sorted({line.rsplit(" :: ", 1)[-1] for line in classifiers})
        return Licence(project, version, ", ".join(names), "Classifier")
    if files:
        return Licence(project, version, ", ".join(map(str, files)), "License-File")
    return Licence(project, version, "", "nothing")
