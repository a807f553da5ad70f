import base64
import hashlib
import stat
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / "data" / "wheel"
NAME = "demo-1.2.0-cp38-abi3-manylinux_2_28_x86_64.whl"
INFO = "demo-1.2.0.dist-info"
VERSION_FILE = b"""__version__: str
__version_tuple__: tuple[int | str, ...]
__version__ = version = '1.2.0'
__version_tuple__ = version_tuple = (1, 2, 0)

__commit_id__ = commit_id = 'g4ba787ec9'
"""
METADATA = b"""Metadata-Version: 2.4
Name: demo
Version: 1.2.0
Requires-Dist: numpy>=2; extra == "x"

Version: 1.2.0 is what this describes.
"""
WHEEL = b"Wheel-Version: 1.0\nGenerator: setuptools (80.10.2)\nRoot-Is-Purelib: false\nTag: cp38-abi3-linux_x86_64\n\n"
Build = Callable[..., Path]


def record_of(files: Mapping[str, bytes], info: str) -> bytes:
    def digest(content: bytes) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()

    lines = [f"{name},sha256={digest(content)},{len(content)}" for name, content in files.items()]
    return "".join(f"{line}\n" for line in [*lines, f"{info}/RECORD,,"]).encode()


def mode_of(name: str) -> int:
    return (stat.S_IFREG | (0o755 if name.endswith(".so") else 0o664)) << 16


@pytest.fixture
def files() -> dict[str, bytes]:
    """Members of a small wheel with a real extension in it."""
    return {
        "demo/__init__.py": b"",
        "demo/_version.py": VERSION_FILE,
        "demo/core.py": b"print('hello')\n" * 40,
        "demo/many.abi3.so": (DATA / "many.so").read_bytes(),
        f"{INFO}/METADATA": METADATA,
        f"{INFO}/WHEEL": WHEEL,
    }


@pytest.fixture
def build_wheel(tmp_path: Path, files: dict[str, bytes]) -> Build:
    """Write a wheel with the standard library, and no care for times or order."""

    def build(
        changes: Mapping[str, bytes] | None = None,
        *,
        name: str = NAME,
        info: str = INFO,
        record: bytes | None = None,
        extra: Callable[[zipfile.ZipFile], None] | None = None,
    ) -> Path:
        members = {**files, **(changes or {})}
        path = tmp_path / name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for member, content in [*members.items(), (f"{info}/RECORD", record or record_of(members, info))]:
                entry = zipfile.ZipInfo(member, (2026, 11, 1, 9, 55, 0))
                entry.external_attr = mode_of(member)
                entry.compress_type = zipfile.ZIP_STORED if member.endswith("core.py") else zipfile.ZIP_DEFLATED
                archive.writestr(entry, content)
            if extra:
                extra(archive)
        return path

    return build
