"""An image is planned from pinned things only, and the files in docker/ agree with the code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.unit.index import wheels
from vllm_spark import paths
from vllm_spark.cli.main import main
from vllm_spark.distro.bundle import make
from vllm_spark.distro.bundle.target import Target
from vllm_spark.distro.image import build as building
from vllm_spark.distro.image.plan import default_base, plan
from vllm_spark.distro.index import tree
from vllm_spark.distro.upstream import pins
from vllm_spark.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    upstream = pins.load()
    made = [
        wheels.make(folder, "vllm", upstream.vllm_version),
        wheels.make(
            folder, "vllm-spark", upstream.package_version, requires=[f"vllm=={upstream.vllm_version}", "torch"]
        ),
        wheels.make(folder, "torch", "2.14.0"),
        wheels.make(folder, "pip", "26.3"),
    ]
    tree.build(folder / "index", made)
    return make.make(make.plan(["vllm-spark"], str(folder / "index"), Target()), folder / "bundle")


def test_the_default_base_is_pinned() -> None:
    assert re.fullmatch(r"docker\.io/nvidia/cuda:13\.0\.\d+-base-ubuntu24\.04@sha256:[0-9a-f]{64}", default_base())


def test_labels_tie_the_image_to_its_inputs(bundle: Path) -> None:
    planned = plan(bundle, revision="5" * 40)
    labels = planned.labels
    assert labels["org.opencontainers.image.version"] == pins.load().package_version
    assert labels["org.opencontainers.image.revision"] == "5" * 40
    assert labels["org.opencontainers.image.base.digest"] == default_base().partition("@")[2]
    assert labels["vllm-spark.torch"] == "2.14.0"
    assert re.fullmatch("sha256:[0-9a-f]{64}", labels["vllm-spark.series"])
    assert sum(name.startswith("vllm-spark.wheel.") for name in labels) == 2


@pytest.mark.parametrize("base", ["ubuntu:24.04", "nvidia/cuda", "docker.io/x@sha256:abc", "localhost"])
def test_a_base_that_may_change_is_refused(bundle: Path, base: str) -> None:
    with pytest.raises(ConfigError, match="may change under its name"):
        plan(bundle, base=base)


def test_a_bundle_of_other_versions_is_refused(tmp_path: Path) -> None:
    tree.build(tmp_path / "index", [*wheels.release(tmp_path, 99), wheels.make(tmp_path, "pip", "1")])
    target = Target()
    other = make.make(make.plan(["vllm-spark"], str(tmp_path / "index"), target, dependencies=False), tmp_path / "b")
    with pytest.raises(ArtefactError, match="does not hold vllm "):
        plan(other)


def test_both_builders_get_the_same_inputs(bundle: Path, tmp_path: Path) -> None:
    planned = plan(bundle, base="localhost/base:arm64", packages="")
    for tool in ("docker", "buildah"):
        words = building.commands(planned, "localhost/x", tmp_path / "out", tool)[0]
        assert f"bundle={bundle}" in words
        assert {"BASE=localhost/base:arm64", "PACKAGES=", "linux/arm64"} <= set(words)
        assert not [word for word in words if re.search("token|password|secret", word, re.IGNORECASE)]


def test_the_bake_file_names_this_version_and_every_argument() -> None:
    text = (paths.repo_root() / "docker" / "docker-bake.hcl").read_text()
    version = pins.load().package_version
    assert f'"vllm-spark:{version}"' in text
    assert f'"dist/vllm-spark-{version}-cp312-aarch64"' in text
    assert 'platforms  = ["linux/arm64"]' in text


def test_plan_builds_nothing(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["image", "plan", "--bundle", str(bundle), "--tool", "buildah", "--out", str(tmp_path / "image")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert default_base() in out
    assert "buildah build" in out
    assert not (tmp_path / "image").exists()
    assert main([*words[:3], str(tmp_path / "none")]) == 2
