"""Small wheels for the index tests: real zips with METADATA, WHEEL and a true RECORD, same bytes every time."""

import base64
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

VLLM = "0.33.0+spark.1"


def metadata(name: str, version: str, *, requires: Sequence[str] = (), python: str | None = ">=3.11") -> bytes:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Python: {python}"] if python else []
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    return ("\n".join(lines) + "\n").encode()


def make(
    folder: Path,
    name: str,
    version: str,
    *,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    python: str | None = ">=3.11",
    meta: bytes | None = None,
    content: bytes = b"",
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    members = {
        f"{name.replace('-', '_')}_stand_in.py": b"VALUE = 1\n" + content,
        f"{info}/METADATA": meta or metadata(name, version, requires=requires, python=python),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in members.items())
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in members.items():
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), data)
    return wheel


def release(folder: Path, count: int, *, base: str = "0.33.0", content: bytes = b"") -> list[Path]:
    """The two wheels of release `count` on `base`, with the names and tags of the real ones."""
    vllm = f"{base}+spark.{count}"
    return [
        make(folder, "vllm", vllm, tag="cp38-abi3-manylinux_2_28_aarch64", content=content),
        make(
            folder,
            "vllm-spark",
            f"{base}.{count}",
            tag="cp311-abi3-manylinux_2_34_aarch64",
            requires=[f"vllm=={vllm}", "nvidia-nvvm==13.0.*", "numpy==1.0; extra == 'x'"],
        ),
    ]


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
