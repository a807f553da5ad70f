import json
from dataclasses import replace

import pytest

from vllm_spark.distro.wheel.sbom import PatchEntry, make_sbom, read_sbom
from vllm_spark.errors import ArtefactError

APPLIED = PatchEntry(
    "model/gemma4-expert-keys", "ab" * 32, "fix", "python", True, links=("https://github.com/vllm-project/vllm/pull/1",)
)
LEFT_OUT = PatchEntry("kernel/e2m1", "cd" * 32, "enable", "native", False, "the stock binary has 120f code")


def make(*patches: PatchEntry) -> bytes:
    return make_sbom(
        "vllm",
        "0.33.0+spark.1",
        upstream_file="vllm-0.33.0-cp38-abi3-manylinux_2_28_aarch64.whl",
        upstream_version="0.33.0",
        upstream_sha256="e9" * 32,
        patches=patches,
    )


def test_says_what_was_made_from_what() -> None:
    component = read_sbom(make(APPLIED, LEFT_OUT), "x")["metadata"]["component"]
    assert component["purl"] == "pkg:pypi/vllm@0.33.0%2Bspark.1"
    (ancestor,) = component["pedigree"]["ancestors"]
    assert ancestor["version"] == "0.33.0"
    assert ancestor["hashes"] == [{"alg": "SHA-256", "content": "e9" * 32}]
    (patch,) = component["pedigree"]["patches"]
    assert patch["type"] == "unofficial"
    assert patch["diff"]["url"] == f"patches/{APPLIED.name}.patch#sha256={APPLIED.sha256}"
    assert patch["resolves"] == [{"type": "defect", "name": APPLIED.name, "references": [*APPLIED.links]}]
    assert {one["name"]: one["value"] for one in component["properties"]} == {
        f"vllm-spark:patch:{APPLIED.name}": f"python; sha256={'ab' * 32}; applied",
        f"vllm-spark:patch:{LEFT_OUT.name}": f"native; sha256={'cd' * 32}; not applied: the stock binary has 120f code",
    }
    assert component["pedigree"]["notes"].startswith("1 of the 2 patches")


def test_depends_on_content_only() -> None:
    first = make(APPLIED, LEFT_OUT)
    assert make(LEFT_OUT, APPLIED) == first
    assert "timestamp" not in json.loads(first)["metadata"]
    other = make(APPLIED, replace(LEFT_OUT, reason="another"))
    assert json.loads(other)["serialNumber"] != json.loads(first)["serialNumber"]


def test_no_patches() -> None:
    component = read_sbom(make(), "x")["metadata"]["component"]
    assert "patches" not in component["pedigree"]


@pytest.mark.parametrize("data", [b"", b"[", b"\xff", b"{}", b'{"bomFormat": "CycloneDX"}', b"[1]"])
def test_what_is_no_sbom(data: bytes) -> None:
    with pytest.raises(ArtefactError, match=r"not JSON|not valid CycloneDX"):
        read_sbom(data, "x")


def test_unknown_field_is_refused() -> None:
    document = json.loads(make(APPLIED))
    document["metadata"]["component"]["pedigree"]["patches"][0]["sha256"] = "x"
    with pytest.raises(ArtefactError, match="not valid CycloneDX"):
        read_sbom(json.dumps(document).encode(), "x")
