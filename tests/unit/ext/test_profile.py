"""Profiles are data: what they say, and what is refused."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from vllm_spark import paths
from vllm_spark.cli.main import main
from vllm_spark.distro import profile
from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that holds the profiles and nothing else."""
    shutil.copytree(paths.repo_root() / "build" / "profiles", tmp_path / "build" / "profiles")
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "series").touch()
    monkeypatch.setenv("VLLM_SPARK_ROOT", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "arch", "tag"),
    [
        ("gb10-cu130", "121a", "cp311-abi3-manylinux_2_34_aarch64"),
        ("h100-cu130", "90a", "cp311-abi3-manylinux_2_34_x86_64"),
    ],
)
def test_what_a_profile_says(name: str, arch: str, tag: str) -> None:
    chosen = profile.load(name)
    assert (chosen.name, chosen.cuda_arch, chosen.wheel_tag) == (name, arch, tag)
    assert chosen.torch_target == "0x020a000000000000ULL"


def test_each_profile_names_an_image_that_its_gpu_loads() -> None:
    for name in profile.names():
        chosen = profile.load(name)
        assert chosen.cuda_arch.rstrip("af") == chosen.compute_capability.replace(".", ""), name


def test_the_python_side_asks_for_the_same_torch() -> None:
    from vllm_spark.runtime import kernels

    wanted = {profile.load(name).torch_min for name in profile.names()}
    assert wanted == {".".join(map(str, kernels.TORCH_MIN))}


@pytest.mark.parametrize("name", ["gb11", "", "../profiles/gb10-cu130", "gb10-cu130.toml", "*"])
@pytest.mark.parametrize("action", ["build", "toolchain"])
def test_unknown_profile(name: str, action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ext", action, f"--profile={name}"]) == ConfigError.exit_code
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "unknown profile" in said
    assert "gb10-cu130, h100-cu130" in said


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('"aarch64"', '"riscv64"', "machine"),
        ('"121a"', '"sm_121a"', "cuda_arch"),
        ('"2.10"', "2.10", "torch_min"),
        ('"2.34"', '"2.34.1"', "glibc"),
        ("glibc", "glibs", "glibs"),
        ("machine", "[machine", ""),
        ('machine = "aarch64"', "", "machine"),
        ('machine = "aarch64"', "machine = ", ""),
    ],
)
def test_malformed_profile(checkout: Path, old: str, new: str, named: str) -> None:
    path = checkout / "build" / "profiles" / "gb10-cu130.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        profile.load("gb10-cu130")
    assert str(path) in str(caught.value)
    assert named in str(caught.value)
