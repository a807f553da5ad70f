"""A small release of stand-in wheels: every file is real, only the wheels hold nothing of use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.index import wheels
from vllm_spark.distro.index import tree
from vllm_spark.distro.index.facts import Verdict
from vllm_spark.distro.release import assemble
from vllm_spark.distro.release import manifest as form
from vllm_spark.distro.release.manifest import Manifest
from vllm_spark.distro.upstream.fetch import sha256_hex, sha256_of

if TYPE_CHECKING:
    from pathlib import Path

PATCHES = (
    form.Patch(
        "model/keys", "model: map keys", "1" * 64, "fix", "python", "proposed https://example.org/1", applied=True
    ),
    form.Patch("kernel/e2m1", "kernel: E2M1", "2" * 64, "enable", "native", "local: ours", False, "repacked"),
)


def make(folder: Path, **changes: object) -> Manifest:
    """Write a release into `folder`; `changes` replace fields of its manifest."""
    pair = wheels.release(folder, 1)
    tree.build(folder / "index", pair)
    digests = {wheel.name: sha256_of(wheel) for wheel in pair}
    lock = "".join(
        f"{name}=={version} --hash=sha256:{digest}\n"
        for (name, version), digest in zip(
            (("vllm", "0.33.0+spark.1"), ("vllm-spark", "0.33.0.1")), digests.values(), strict=True
        )
    )
    reports = {"lock.txt": lock.encode(), "licences.json": b"[]\n", "audit-vllm.json": b"{}\n"}
    roles: dict[str, form.Role] = {"lock.txt": "lock", "licences.json": "licences", "audit-vllm.json": "audit"}
    entries = [form.Entry(wheel.name, "wheel", digests[wheel.name], wheel.stat().st_size) for wheel in pair]
    entries += [
        form.Entry(f"reports/{name}", roles[name], sha256_hex(data), len(data)) for name, data in reports.items()
    ]
    fields: dict[str, object] = {
        "format": form.FORMAT,
        "project": "vllm-spark",
        "version": "0.33.0.1",
        "base": "vllm",
        "base_version": "0.33.0",
        "upstream": (form.Input("sdist", "vllm-0.33.0.tar.gz", "3" * 64),),
        "series": "4" * 64,
        "patches": PATCHES,
        "source": form.Source("5" * 40, clean=True),
        "toolchain": form.Toolchain("gb10-cu130", "g++ 12.2.0", (form.Input("nvcc", "nvcc.whl", "6" * 64),)),
        "files": tuple(entries),
        "index": digests,
        "audits": (form.Audited(pair[0].name, ("W001",), (Verdict("vllm/_C.abi3.so", "native", "4 x sm_120"),)),),
        "vulnerabilities": form.Vulnerabilities(2, 0, 0),
        "signature": "unsigned: no identity",
    }
    manifest = Manifest(**(fields | changes))  # type: ignore[arg-type]  # what a test replaces has the field's type
    return assemble.write(folder, manifest, reports, b"# notes\n", "urn:example:builder")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    make(tmp_path / "dist")
    return tmp_path / "dist"
