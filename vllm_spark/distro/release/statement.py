"""The provenance statement: in-toto Statement v1 with a SLSA v1 provenance predicate.

Sources: in-toto attestation framework, spec v1 (statement.md, predicates/provenance.md); slsa.dev/spec/v1.0/provenance.
It names no time and no machine, so that two people who build the same release write the same statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from vllm_spark.distro.release.manifest import Manifest

__all__ = ["PREDICATE", "TYPE", "dump", "statement"]

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
_BUILD_TYPE = "urn:vllm-spark:release:1"  # docs/release.md describes its parameters


def statement(manifest: Manifest, manifest_sha256: str, builder: str) -> dict[str, Any]:
    """What was built (subjects) and from what.

    Args:
        builder: URI of whoever ran the build, as a verifier would know it.
    """
    subjects = [{"name": entry.path, "digest": {"sha256": entry.sha256}} for entry in manifest.of("wheel")]
    subjects.append({"name": "manifest.json", "digest": {"sha256": manifest_sha256}})
    if manifest.image:
        subjects.append({"name": "image", "digest": {"sha256": manifest.image.digest.removeprefix("sha256:")}})
    inputs = [
        {"name": one.name, "digest": {"sha256": one.sha256}} for one in (*manifest.upstream, *manifest.toolchain.files)
    ]
    inputs += [{"name": f"patches/{one.name}.patch", "digest": {"sha256": one.sha256}} for one in manifest.patches]
    if manifest.source.commit:
        inputs.append({"name": "source", "digest": {"gitCommit": manifest.source.commit}})
    return {
        "_type": TYPE,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {"profile": manifest.toolchain.profile},
                "internalParameters": {
                    "compiler": manifest.toolchain.compiler,
                    "series": manifest.series,
                    "sourceClean": manifest.source.clean,
                },
                "resolvedDependencies": inputs,
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }


def dump(content: dict[str, Any]) -> bytes:
    """The file's bytes."""
    return msgspec.json.format(msgspec.json.encode(content, order="sorted"), indent=1) + b"\n"
