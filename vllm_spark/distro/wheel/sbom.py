"""The bill of materials inside a patched wheel: CycloneDX 1.6 at `sboms/` of the metadata folder (PEP 770).

The wheel is one component whose pedigree names upstream's wheel as ancestor. Applied patches stand in the pedigree,
which by its definition lists what makes the component differ; every patch of the series, applied or not, is also a
property of the component, with its hash and the reason. Nothing depends on time or chance: the serial number is
derived from the content.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from cyclonedx.model import HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType, Diff, Patch, PatchClassification, Pedigree
from cyclonedx.model.issue import IssueClassification, IssueType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from vllm_spark.errors import ArtefactError

__all__ = ["PATCH_PROPERTY", "PatchEntry", "make_sbom", "read_sbom"]

PATCH_PROPERTY = "vllm-spark:patch:"
_SCHEMA = SchemaVersion.V1_6


@dataclass(frozen=True)
class PatchEntry:
    """One patch of the series.

    Attributes:
        name: such as `kernel/e2m1-software-fallback`; its file is `patches/NAME.patch`.
        sha256: of that file.
        kind: `fix` for a defect of upstream's, anything else for an enhancement.
        patch_class: `python` or `native`.
        reason: why it is not applied; empty when it is.
        links: upstream's issues or pull requests that it belongs to.
    """

    name: str
    sha256: str
    kind: str
    patch_class: str
    applied: bool
    reason: str = ""
    links: tuple[str, ...] = ()


def make_sbom(
    project: str,
    version: str,
    *,
    upstream_file: str,
    upstream_version: str,
    upstream_sha256: str,
    patches: tuple[PatchEntry, ...],
) -> bytes:
    """The document as JSON text, validated against the CycloneDX schema.

    Raises:
        ArtefactError: it does not validate.
    """
    applied = [patch for patch in patches if patch.applied]
    ancestor = _component(project, upstream_version, upstream_file, upstream_sha256)
    component = _component(project, version)
    component.pedigree = Pedigree(
        ancestors=[ancestor],
        patches=[_patch(patch) for patch in applied],
        notes=f"{len(applied)} of the {len(patches)} patches of the series are applied; see the properties.",
    )
    component.properties = [Property(name=PATCH_PROPERTY + patch.name, value=_state(patch)) for patch in patches]
    bom = Bom()
    bom.metadata.component = component
    document: dict[str, Any] = json.loads(make_outputter(bom, OutputFormat.JSON, _SCHEMA).output_as_string())
    del document["metadata"]["timestamp"], document["serialNumber"]
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, _text(document)).urn
    text = _text(document)
    _validate(text, "SBOM")
    return text.encode()


def read_sbom(data: bytes, where: str) -> dict[str, Any]:
    """Parse and validate a document.

    Raises:
        ArtefactError: it is no JSON, or not CycloneDX 1.6.
    """
    try:
        text = data.decode()
        document: dict[str, Any] = json.loads(text)
    except ValueError as err:
        raise ArtefactError(f"not JSON ({err})", where=where) from err
    _validate(text, where)
    return document


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _validate(text: str, where: str) -> None:
    # Stands here because it builds a grammar when imported, which takes seconds.
    from cyclonedx.validation.json import JsonStrictValidator

    error = JsonStrictValidator(_SCHEMA).validate_str(text)
    if error is not None:
        raise ArtefactError(f"not valid CycloneDX 1.6: {str(error).splitlines()[0]}", where=where)


def _component(project: str, version: str, file: str = "", sha256: str = "") -> Component:
    qualifiers = {"file_name": file} if file else None
    return Component(
        name=project,
        version=version,
        type=ComponentType.LIBRARY,
        purl=PackageURL("pypi", None, project, version, qualifiers),
        bom_ref=f"{project}=={version}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else None,
    )


def _patch(patch: PatchEntry) -> Patch:
    defect = patch.kind == "fix"
    issue = IssueType(
        type=IssueClassification.DEFECT if defect else IssueClassification.ENHANCEMENT,
        name=patch.name,
        references=[XsUri(link) for link in patch.links],
    )
    # A diff has no field for a hash; a fragment is where package indexes put one.
    diff = Diff(url=XsUri(f"patches/{patch.name}.patch#sha256={patch.sha256}"))
    return Patch(type=PatchClassification.UNOFFICIAL, diff=diff, resolves=[issue])


def _state(patch: PatchEntry) -> str:
    state = "applied" if patch.applied else f"not applied: {patch.reason}"
    return f"{patch.patch_class}; sha256={patch.sha256}; {state}"
