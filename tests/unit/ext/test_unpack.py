"""A wheel unfolds inside its folder, within bounds, and its programs stay programs."""

from __future__ import annotations

import stat
import zipfile
from typing import TYPE_CHECKING

import pytest

from vllm_spark.distro.ext import unpack as module
from vllm_spark.distro.ext.unpack import unpack
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from pathlib import Path


def wheel(path: Path, members: dict[str, int]) -> Path:
    """A zip with members of the given modes; mode 0 is what tools on other systems write."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, mode in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, name.encode())
    return path


def test_modes_and_places(tmp_path: Path) -> None:
    made = wheel(
        tmp_path / "x.whl", {"a/tool": 0o100744, "a/data": 0o100664, "a/odd": 0, "b/other": 0o755, "a/deep/er/x": 0o600}
    )
    unpack(made, tmp_path / "out", lambda name: name.removeprefix("a/") if name.startswith("a/") else None)
    modes = {
        str(path.relative_to(tmp_path / "out")): stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert modes == {"tool": 0o755, "data": 0o644, "odd": 0o644, "deep/er/x": 0o644}
    assert (tmp_path / "out" / "tool").read_text() == "a/tool"


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "a\\..\\evil", "..", "x/.."])
def test_a_member_that_leaves_the_folder(tmp_path: Path, name: str) -> None:
    made = wheel(tmp_path / "x.whl", {"good": 0o644})
    with pytest.raises(ArtefactError, match="leaves the folder"):
        unpack(made, tmp_path / "out", lambda _: name)
    assert [path.name for path in tmp_path.iterdir()] == ["x.whl"]


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = wheel(tmp_path / "x.whl", {"bomb": 0o644, "other": 0o644})
    monkeypatch.setattr(module, "_LIMIT", 8)
    with pytest.raises(ArtefactError, match="unfolds to 9 bytes"):
        unpack(made, tmp_path / "out", lambda name: name)
    unpack(made, tmp_path / "out", lambda name: name if name == "bomb" else None)


@pytest.mark.parametrize("data", [b"", b"no zip at all", b"PK\x03\x04 cut short"])
def test_not_a_zip(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.whl").write_bytes(data)
    with pytest.raises(ArtefactError, match="not a readable wheel"):
        unpack(tmp_path / "x.whl", tmp_path / "out", lambda name: name)


def test_damaged_content(tmp_path: Path) -> None:
    made = wheel(tmp_path / "x.whl", {"tool": 0o755})
    made.write_bytes(made.read_bytes().replace(b"tool", b"t00l", 2).replace(b"t00l", b"tool", 1))
    with pytest.raises(ArtefactError, match=r"x\.whl"):
        unpack(made, tmp_path / "out", lambda name: name)
