"""Small images, written layer by layer as buildah and docker write them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.index import wheels

if TYPE_CHECKING:
    from pathlib import Path

SITE = "opt/vllm-spark/lib/python3.12/site-packages/"
Member = tuple[tarfile.TarInfo, bytes]


def file(name: str, data: bytes = b"x", mode: int = 0o644) -> Member:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    return info, data


def folder(name: str) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info, b""


@dataclass
class Image:
    """What goes into an image; `write` lays it down."""

    wheels: list[Path]
    layers: list[list[Member]]
    config: dict[str, Any]
    labels: dict[str, str] = field(default_factory=dict)

    def write(self, out: Path, *, oci: bool = False, attested: bool = False) -> Path:
        blobs = out / "blobs" / "sha256" if oci else out
        blobs.mkdir(parents=True)

        def blob(data: bytes, kind: str) -> dict[str, Any]:
            digest = hashlib.sha256(data).hexdigest()
            (blobs / digest).write_bytes(data)
            return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

        tars = [tar(members) for members in self.layers]
        config = {
            "architecture": "arm64",
            "os": "linux",
            "config": self.config | {"Labels": self.labels},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in tars]},
            "history": [{"created_by": f"step {number}"} for number in range(len(tars))],
        }
        manifest = {
            "schemaVersion": 2,
            "config": blob(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
            "layers": [
                blob(gzip.compress(one, mtime=0), "application/vnd.oci.image.layer.v1.tar+gzip") for one in tars
            ],
        }
        if oci:
            entry = blob(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
            if attested:  # as docker buildx does with --provenance
                other = blob(b"{}", "application/vnd.oci.image.manifest.v1+json")
                other["platform"] = {"architecture": "unknown", "os": "unknown"}
                inner = json.dumps({"schemaVersion": 2, "manifests": [entry, other]})
                entry = blob(inner.encode(), "application/vnd.oci.image.index.v1+json")
            (out / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
            (out / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
        else:
            (out / "manifest.json").write_text(json.dumps(manifest))
            (out / "version").write_text("Directory Transport Version: 1.1\n")
        return out


def tar(members: list[Member]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def installed(wheel: Path) -> list[Member]:
    with zipfile.ZipFile(wheel) as archive:
        return [file(SITE + name, archive.read(name)) for name in archive.namelist()]


@pytest.fixture
def image(tmp_path: Path) -> Image:
    pair = wheels.release(tmp_path / "dist", 1)
    ours = [member for wheel in pair for member in installed(wheel)]
    config = {
        "User": "1000:1000",
        "Entrypoint": ["/bin/sh", "/opt/vllm-spark/libexec/entrypoint.sh"],
        "Healthcheck": {"Test": ["CMD", "/opt/vllm-spark/libexec/healthcheck.py"]},
        "Volumes": {"/cache": {}},
        "Env": ["PATH=/usr/bin", "HOME=/cache"],
    }
    labels = {f"vllm-spark.wheel.{one.name}": f"sha256:{hashlib.sha256(one.read_bytes()).hexdigest()}" for one in pair}
    layers = [[file("bin/sh", b"#" * 1000)], [folder("cache"), *ours], [file("opt/vllm-spark/libexec/entrypoint.sh")]]
    return Image(pair, layers, config, labels | {"vllm-spark.base": "localhost/base"})
