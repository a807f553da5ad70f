"""The pins file: what it offers and how it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vllm_spark import paths
from vllm_spark.distro.upstream import pins
from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_versions_order_as_promised() -> None:
    upstream = pins.load()
    ours = Version(upstream.vllm_version)
    assert ours > Version(upstream.version)
    assert ours in SpecifierSet(f"=={upstream.version}")
    assert Version(upstream.package_version).release == (*Version(upstream.version).release, upstream.spark)


def test_pyproject_follows_the_pins() -> None:
    import tomllib

    project = tomllib.loads((paths.repo_root() / "pyproject.toml").read_text())["project"]
    upstream = pins.load()
    assert project["version"] == upstream.package_version
    assert f"vllm=={upstream.vllm_version}" in project["dependencies"]
    assert project["requires-python"] == upstream.requires.python


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('version = "0.33.0"', 'version = "latest"'), "base.version"),
        (("spark = 1", "spark = 0"), "base.spark"),
        (('sha256 = "f4', 'sha256 = "F4'), "sha256"),
        (("[requires]", "[requires]\nfoo = 1"), "foo"),
        (("[base]", "[base"), "line"),
        (('name = "vllm-0.33.0.tar.gz"', 'name = "../vllm.tar.gz"'), "name"),
    ],
)
def test_malformed_pins_name_the_key(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    text = (paths.repo_root() / "patches" / "upstream.toml").read_text()
    assert change[0] in text
    (tmp_path / "upstream.toml").write_text(text.replace(*change, 1))
    with pytest.raises(ConfigError, match=told):
        pins.load(tmp_path / "upstream.toml")


def test_missing_pin_and_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no pin for the wheel for riscv64"):
        pins.load().file("wheel", "riscv64")
    with pytest.raises(ConfigError, match="missing"):
        pins.load(tmp_path / "upstream.toml")
