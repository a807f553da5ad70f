"""A release that lost or changed anything is refused, and the line names what."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.unit.index import wheels
from tests.unit.release.conftest import make
from vllm_spark.cli.main import main
from vllm_spark.distro.index import tree
from vllm_spark.distro.index.releases import yank
from vllm_spark.distro.release import manifest as form
from vllm_spark.distro.release.verify import verify
from vllm_spark.errors import ArtefactError, ConfigError, SparkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VLLM = "vllm-0.33.0+spark.1-cp38-abi3-manylinux_2_28_aarch64.whl"
OURS = "vllm_spark-0.33.0.1-cp311-abi3-manylinux_2_34_aarch64.whl"


def problems(folder: Path) -> tuple[str, ...]:
    return verify(folder).problems


def test_a_sound_release(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(release) == ()
    assert main(["release", "verify", str(release)]) == 0
    assert "vllm-spark 0.33.0.1, 8 files, all sound; unsigned: no identity" in capsys.readouterr().out


def test_sums_are_what_sha256sum_reads(release: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=release, check=True)


def alter(path: Path) -> int:
    data = path.read_bytes()
    return path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def refit(folder: Path) -> int:
    """Write SHA256SUMS anew, as somebody would who wants to hide a change."""
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    names = [line[66:] for line in lines]
    digests = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names]
    return (folder / "SHA256SUMS").write_text("".join(f"{d}  {n}\n" for d, n in zip(digests, names, strict=True)))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: (d / VLLM).unlink(), f"{VLLM}: missing"),
        (lambda d: alter(d / OURS), f"{OURS}: altered"),
        (lambda d: os.truncate(d / VLLM, 100), f"{VLLM}: altered"),
        (lambda d: alter(d / "NOTES.md"), "NOTES.md: altered"),
        (lambda d: (d / "reports" / "licences.json").unlink(), "reports/licences.json: missing"),
        (lambda d: (d / "reports" / "extra.json").touch(), "reports/extra.json: not listed in SHA256SUMS"),
        (lambda d: (d / "vllm-9-py3-none-any.whl").touch(), "vllm-9-py3-none-any.whl: not listed"),
        (lambda d: alter(d / "provenance.json"), "provenance.json: altered"),
        (lambda d: (d / "provenance.json").unlink(), "provenance.json: missing"),
        (
            lambda d: ((d / "NOTES.md").unlink(), (d / "NOTES.md").symlink_to("/etc/passwd")),
            "NOTES.md: is a symbolic link",
        ),
        (lambda d: (alter(d / OURS), refit(d)), f"{OURS}: SHA256SUMS and manifest.json disagree"),
        (lambda d: ((d / "reports" / "lock.txt").write_text("x==1\n"), refit(d)), "reports/lock.txt: not 'project=="),
        (lambda d: alter(d / "index" / "files" / VLLM), f"index/files/{VLLM}: missing or altered"),
        (lambda d: (d / "index" / "files" / OURS).unlink(), f"index/files/{OURS}: missing or altered"),
        (
            lambda d: alter(d / "index" / "simple" / "vllm" / "index.html"),
            "index/simple/vllm/index.html: edited by hand",
        ),
    ],
)
def test_each_change_is_named(release: Path, damage: Callable[[Path], object], says: str) -> None:
    damage(release)
    assert any(says in problem for problem in problems(release)), problems(release)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: (d / "SHA256SUMS").unlink(), "SHA256SUMS is missing, so this is no whole release"),
        (lambda d: (d / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda d: (d / "manifest.json").write_text("{}"), "not a release manifest"),
        (lambda d: (d / "SHA256SUMS").write_text("../../etc/passwd\n"), "SHA256SUMS:1: malformed line"),
        (shutil.rmtree, "no such folder"),
    ],
)
def test_what_is_no_release(release: Path, damage: Callable[[Path], object], says: str) -> None:
    damage(release)
    with pytest.raises((ArtefactError, ConfigError), match=says):
        verify(release)


def test_a_manifest_rewritten_with_fitting_sums_no_longer_fits_the_statement(release: Path) -> None:
    manifest = release / "manifest.json"
    manifest.write_text(manifest.read_text().replace("5" * 40, "7" * 40))
    refit(release)
    assert problems(release) == ("provenance.json: does not follow from manifest.json",)


def test_one_line_and_an_exit_code(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alter(release / VLLM)
    assert main(["release", "verify", str(release)]) == 7
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_later_releases_and_yanks_leave_it_sound(release: Path, tmp_path: Path) -> None:
    tree.build(release / "index", wheels.release(tmp_path / "next", 2))
    yank(release / "index", "0.33.0.1", "wedges the host")
    assert problems(release) == ()


def test_an_index_elsewhere_that_lists_other_bytes(release: Path, tmp_path: Path) -> None:
    tree.build(tmp_path / "other", wheels.release(tmp_path / "in", 1, content=b"EVIL = 1\n"))
    found = verify(release, index=tmp_path / "other").problems
    assert any("lists" in problem and "another SHA-256" in problem for problem in found)


def test_a_release_that_was_signed_must_have_its_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sign(_statement: Path, bundle: Path) -> None:
        bundle.write_text("{}")

    monkeypatch.setattr("vllm_spark.distro.release.sign.sign", sign)
    make(tmp_path / "dist", signature="signed by sigstore")
    assert problems(tmp_path / "dist") == ()
    (tmp_path / "dist" / "provenance.sigstore.json").unlink()
    assert any("missing, but manifest.json says signed" in problem for problem in problems(tmp_path / "dist"))


def test_a_signature_is_demanded_of_an_unsigned_release(release: Path) -> None:
    with pytest.raises(ArtefactError, match="unsigned, but a signer is demanded"):
        verify(release, signer="release@example.org", issuer="https://issuer.example.org")
    assert main(["release", "verify", str(release), "--signer", "x"]) == 2


def test_an_interrupted_run_leaves_no_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "dist")

    def stop(*_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("vllm_spark.distro.release.statement.dump", stop)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "dist")
    with pytest.raises(SparkError, match="no whole release"):
        verify(tmp_path / "dist")
    make(tmp_path / "dist")
    assert problems(tmp_path / "dist") == ()


def test_the_schema_in_the_docs_is_the_manifests() -> None:
    from vllm_spark import paths

    documented = json.loads((paths.repo_root() / "docs" / "release-manifest.schema.json").read_text())
    assert documented == form.schema()


def test_a_manifest_keeps_its_schema(release: Path) -> None:
    import jsonschema  # type: ignore[import-untyped]  # it ships no types

    jsonschema.Draft202012Validator(form.schema()).validate(json.loads((release / "manifest.json").read_text()))


def test_the_statement_has_the_form_of_its_specifications(release: Path) -> None:
    found = json.loads((release / "provenance.json").read_text())
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    assert [subject["name"] for subject in found["subject"]] == [VLLM, OURS, "manifest.json"]
    for subject in found["subject"]:
        assert subject["digest"]["sha256"] == hashlib.sha256((release / subject["name"]).read_bytes()).hexdigest()
    assert found["predicate"]["runDetails"]["builder"]["id"] == "urn:example:builder"
    assert "gitCommit" in found["predicate"]["buildDefinition"]["resolvedDependencies"][-1]["digest"]


def test_two_people_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "a")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "C")
    before = os.umask(0o077)
    try:
        make(tmp_path / "deeper" / "b")
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "SHA256SUMS").read_bytes() == (tmp_path / "deeper" / "b" / "SHA256SUMS").read_bytes()
