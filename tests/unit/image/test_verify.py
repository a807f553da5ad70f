"""An image that is not what its labels say, or not fit for strangers, is refused with the reason."""

from __future__ import annotations

import json
import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.unit.image.conftest import SITE, Image, file
from tests.unit.index import wheels
from vllm_spark.cli.main import main
from vllm_spark.distro.image.report import read_report
from vllm_spark.distro.image.verify import verify
from vllm_spark.errors import ArtefactError, ConfigError, IntegrityError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    "form", [{}, {"oci": True}, {"oci": True, "attested": True}], ids=["dir", "oci", "oci with attestations"]
)
def test_a_sound_image(image: Image, tmp_path: Path, form: dict[str, bool]) -> None:
    report, problems = verify(image.write(tmp_path / "image", **form), image.wheels)
    assert problems == ()
    assert (report.platform, report.base) == ("linux/arm64", "localhost/base")
    assert report.base_unpacked == 1000
    assert set(report.packages) == {"vllm", "vllm_spark"}
    assert report.added == 1  # the entry point of this image
    assert report.unpacked == report.base_unpacked + sum(report.packages.values()) + report.added


CHANGES: list[tuple[Callable[[Image], object], str]] = [
    (lambda i: i.config.update(User=""), "runs as root"),
    (lambda i: i.config.update(User="0:0"), "runs as root"),
    (lambda i: i.config.pop("Healthcheck"), "no health check"),
    (lambda i: i.config.update(Entrypoint=["vllm"]), "another entry point"),
    (lambda i: i.config.pop("Volumes"), "caches in no volume"),
    (lambda i: i.config["Env"].append("HF_TOKEN=hf_abc"), "sets HF_TOKEN, which looks like a credential"),
    (lambda i: i.layers[2].append(file("root/.netrc")), "holds root/.netrc, which looks like a credential"),
    (lambda i: i.layers[2].append(file("root/.docker/config.json")), "looks like a credential"),
    (lambda i: i.layers[2].append(file("usr/bin/su", mode=0o4755)), "usr/bin/su, which runs with another's rights"),
    (lambda i: i.layers[2].append(file("root/.cache/pip/http/x")), "belongs to a cache"),
    (lambda i: i.layers[2].append(file("cache/huggingface/token")), "belongs to a cache"),
    (lambda i: i.layers[2].append(file(SITE + "vllm_stand_in.py", b"EVIL")), "vllm_stand_in.py not as in vllm-0.33.0"),
    (lambda i: i.layers[2].append(file(SITE + ".wh.vllm_stand_in.py", b"")), "vllm_stand_in.py not as in vllm-0.33.0"),
    (lambda i: i.layers[2].append(file(f"{SITE}.wh..wh..opq", b"")), "not as in vllm-0.33.0"),
    (lambda i: i.layers[2].append(file(f"{SITE}evil.pth")), "evil.pth, which no installed package lists"),
    (lambda i: i.labels.clear(), "says nothing: the image was built from another wheel"),
]


@pytest.mark.parametrize(("change", "says"), CHANGES)
def test_what_is_wrong_is_said(image: Image, tmp_path: Path, change: Callable[[Image], object], says: str) -> None:
    change(image)
    _report, problems = verify(image.write(tmp_path / "image"), image.wheels)
    assert any(says in problem for problem in problems), problems


def test_an_image_of_other_wheels_than_the_releases(image: Image, tmp_path: Path) -> None:
    other = wheels.release(tmp_path / "other", 1, content=b"FIXED = True\n")
    _report, problems = verify(image.write(tmp_path / "image"), other)
    assert sum("the image was built from another wheel" in problem for problem in problems) == 2
    image.labels = {f"vllm-spark.wheel.{one.name}": "sha256:" + "0" * 64 for one in other}
    assert len(verify(image.write(tmp_path / "lying"), other)[1]) >= 2


def test_triton_needs_its_assembler(image: Image, tmp_path: Path) -> None:
    name = f"{SITE}triton/backends/nvidia/bin/ptxas-blackwell"
    record = f"{SITE}triton-3.8.0.dist-info/RECORD"
    image.layers[1] += [
        file(record, f"triton-3.8.0.dist-info/RECORD,,\n{name.removeprefix(SITE)},,\n".encode()),
        file(name, mode=0o644),
    ]
    assert "Triton cannot compile" in verify(image.write(tmp_path / "a"), image.wheels)[1][0]
    image.layers[2].append(file(name, mode=0o755))
    assert verify(image.write(tmp_path / "b"), image.wheels)[1] == ()


def test_the_budget(image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_spark.distro.image.verify.BUDGET", 5000)
    image.layers[2].append(file("usr/lib/huge", b"#" * 6000))
    assert "adds 0 MB to base and wheels; the budget is 0 MB" in verify(image.write(tmp_path / "i"), image.wheels)[1]


def largest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.unlink(), "missing or cut short"),
        (lambda path: os.truncate(path, path.stat().st_size // 2), "missing or cut short"),
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), "altered"),
    ],
)
def test_damaged_blobs(image: Image, tmp_path: Path, damage: Callable[[Path], object], says: str) -> None:
    out = image.write(tmp_path / "image")
    damage(largest(out))
    with pytest.raises(IntegrityError, match=says):
        verify(out, image.wheels)


def test_a_layer_that_unpacks_to_something_else(image: Image, tmp_path: Path) -> None:
    out = image.write(tmp_path / "image")
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["layers"][1], manifest["layers"][2] = manifest["layers"][2], manifest["layers"][1]
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(IntegrityError, match="other bytes than promised"):
        verify(out, image.wheels)


def test_a_path_that_leaves_the_image(image: Image, tmp_path: Path) -> None:
    info = tarfile.TarInfo("opt/../../etc/passwd")
    image.layers[2].append((info, b""))
    with pytest.raises(ArtefactError, match="leaves the image"):
        verify(image.write(tmp_path / "image"), image.wheels)


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_no_image(tmp_path: Path, image: Image, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError):
        verify(tmp_path / name, image.wheels)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"config": {}, "layers": []}', '{"config": {"digest": "md5:1", "size": 1}}']
)
def test_malformed_manifests(tmp_path: Path, image: Image, text: str) -> None:
    out = image.write(tmp_path / "image")
    (out / "manifest.json").write_text(text)
    with pytest.raises((ArtefactError, IntegrityError)):
        verify(out, image.wheels)


def test_the_verb_writes_a_report_for_the_release(
    image: Image, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = image.write(tmp_path / "image")
    words = ["image", "verify", str(out), "--wheels", str(tmp_path / "dist"), "--report", str(tmp_path / "r.json")]
    assert main(words) == 0
    assert "added by us" in capsys.readouterr().out
    assert set(read_report(tmp_path / "r.json").wheels) == {one.name for one in image.wheels}
    image.config["User"] = "root"
    assert main([*words[:2], str(image.write(tmp_path / "bad")), *words[3:]]) == 7
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
