"""The real wheels become a release: assembled twice with the same bytes, verified quickly, spoilt and refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.unit.index import wheels
from tests.unit.release.test_reports import Osv
from vllm_spark import paths
from vllm_spark.cli.main import main
from vllm_spark.distro import sums
from vllm_spark.distro.bundle import make
from vllm_spark.distro.bundle.target import Target
from vllm_spark.distro.image.report import Report
from vllm_spark.distro.series import store
from vllm_spark.distro.upstream import pins
from vllm_spark.errors import DecisionNeeded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Released

pytestmark = pytest.mark.slow


@pytest.fixture
def dist(released: Released, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released.dist, tmp_path / "dist"))


@pytest.fixture(scope="module")
def bundle(released: Released, tmp_path_factory: pytest.TempPathFactory) -> Path:
    upstream = pins.load()
    wanted = [f"vllm=={upstream.vllm_version}", f"vllm-spark=={upstream.package_version}", "idna"]
    planned = make.plan(wanted, str(released.dist / "index"), Target(), dependencies=False)
    return make.make(planned, tmp_path_factory.mktemp("bundle") / "bundle")


@pytest.fixture
def osv() -> Iterator[Osv]:
    with Osv({}) as running:
        yield running


def assemble(dist: Path, bundle: Path, osv: Osv, *words: str) -> int:
    return main(["release", "assemble", str(dist), "--bundle", str(bundle), "--osv-url", osv.url, *words])


def test_assembled_twice_and_verified(dist: Path, bundle: Path, osv: Osv, tmp_path: Path) -> None:
    other = Path(shutil.copytree(dist, tmp_path / "elsewhere" / "dist"))
    assert assemble(dist, bundle, osv) == 0
    before = os.umask(0o077)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", "Pacific/Auckland")
            patch.setenv("LC_ALL", "C")
            assert assemble(other, bundle, osv) == 0
    finally:
        os.umask(before)
    names = sums.parse((dist / sums.NAME).read_bytes(), "SHA256SUMS")
    assert sums.parse((other / sums.NAME).read_bytes(), "SHA256SUMS") == names
    assert {"manifest.json", "provenance.json", "NOTES.md", "reports/sbom-vllm.cdx.json"} <= names.keys()
    assert set(osv.asked) == {
        f"vllm=={pins.load().version}",
        "idna==" + _version(bundle, "idna"),
        "pip==" + _version(bundle, "pip"),
    }
    assert main(["release", "verify", str(dist)]) == 0
    _says_what_the_series_says(dist)


def _version(bundle: Path, project: str) -> str:
    contents = json.loads((bundle / "bundle.json").read_text())
    return str(next(one["version"] for one in contents["wheels"] if one["project"] == project))


def _says_what_the_series_says(dist: Path) -> None:
    manifest = json.loads((dist / "manifest.json").read_text())
    series = store.load()
    assert manifest["series"] == series.digest
    assert [patch["name"] for patch in manifest["patches"]] == [patch.meta.name for patch in series.patches]
    assert {patch["patch_class"] for patch in manifest["patches"] if not patch["applied"]} == {"native"}
    notes = (dist / "NOTES.md").read_text()
    assert all(patch.subject in notes for patch in series.patches)
    assert "unsigned: no identity" in notes
    assert str(dist) not in notes + (dist / "manifest.json").read_text() + (dist / "provenance.json").read_text()


def test_known_vulnerabilities_stop_it(dist: Path, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Osv({"vllm": ["GHSA-1"]}) as osv:
        assert assemble(dist, bundle, osv) == DecisionNeeded.exit_code
        assert "vllm 0.33.0 (GHSA-1)" in capsys.readouterr().err
        assert not (dist / sums.NAME).exists()


def test_an_image_of_other_wheels_is_refused(
    dist: Path, bundle: Path, osv: Osv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels_of_another = {"vllm-0.33.0+spark.1-cp38-abi3-manylinux_2_28_aarch64.whl": "0" * 64}
    report = Report("sha256:" + "1" * 64, "linux/arm64", "base", wheels_of_another, 1, 1, 1, {}, 1, ())
    (tmp_path / "image.json").write_bytes(msgspec.json.encode(report))
    assert assemble(dist, bundle, osv, "--image", str(tmp_path / "image.json")) == 7
    assert "the image was built from other wheels" in capsys.readouterr().err
    assert not (dist / sums.NAME).exists()


def test_a_wheel_of_another_series_is_refused(
    dist: Path,
    bundle: Path,
    osv: Osv,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "checkout"
    for part in ("patches", "build", "csrc"):
        shutil.copytree(paths.repo_root() / part, root / part)
    name = store.load().patches[0].path
    text = (root / "patches" / name).read_text().replace("\n\n", "\n\nAnother reason.\n\n", 1)
    (root / "patches" / name).write_text(text)
    monkeypatch.setenv("VLLM_SPARK_ROOT", str(root))
    assert assemble(dist, bundle, osv) == 7
    assert "than the series has" in capsys.readouterr().err


def test_a_stray_wheel_is_refused(dist: Path, bundle: Path, osv: Osv, capsys: pytest.CaptureFixture[str]) -> None:
    wheels.make(dist, "vllm", "0.33.0+spark.99")
    assert assemble(dist, bundle, osv) == 2
    assert "holds another wheel" in capsys.readouterr().err
