"""What is read from a wheel, and which wheels are refused."""

import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.unit.index import wheels
from vllm_spark.distro.index.facts import timestamp
from vllm_spark.distro.index.reading import read_metadata, read_wheel
from vllm_spark.errors import ArtefactError, ConfigError


@pytest.mark.parametrize(
    ("name", "version", "project", "normal"),
    [
        ("vllm", "0.33.0+spark.1", "vllm", "0.33.0+spark.1"),
        ("vllm-spark", "0.33.0.1", "vllm-spark", "0.33.0.1"),
        ("Vllm.Spark", "0.33.0.1", "vllm-spark", "0.33.0.1"),
        ("vllm_spark", "0.33.0rc1", "vllm-spark", "0.33.0rc1"),
        ("vllm", "0.33.0+spark.01", "vllm", "0.33.0+spark.1"),
        ("vllm", "1!0.33.0.post1", "vllm", "1!0.33.0.post1"),
    ],
)
def test_names_and_versions_are_normalised(tmp_path: Path, name: str, version: str, project: str, normal: str) -> None:
    fact, metadata = read_wheel(wheels.make(tmp_path, name, version))
    assert (fact.project, fact.version) == (project, normal)
    assert metadata == wheels.metadata(name, version)


def test_exact_pins_are_those_without_choice(tmp_path: Path) -> None:
    wheel = wheels.make(
        tmp_path,
        "vllm-spark",
        "0.33.0.1",
        requires=["Vllm==0.33.0+spark.1", "a==1.*", "b>=1", "c==1; extra == 'x'", "d==1,!=2", "e===1"],
    )
    assert read_wheel(wheel)[0].exact == (("vllm", "0.33.0+spark.1"),)


def _not_a_zip(folder: Path) -> Path:
    path = folder / "vllm-1-py3-none-any.whl"
    path.write_bytes(b"<html>not found</html>")
    return path


def _cut(folder: Path) -> Path:
    path = wheels.make(folder, "vllm", "1")
    path.write_bytes(path.read_bytes()[:-30])
    return path


def _flipped(folder: Path) -> Path:
    path = wheels.make(folder, "vllm", "1")
    path.write_bytes(path.read_bytes().replace(b"Name: vllm", b"Name: vlln"))
    return path


def _renamed(folder: Path) -> Path:
    path = wheels.make(folder, "vllm", "1")
    return path.rename(folder / "vllm-2-py3-none-any.whl")


def _without_metadata(folder: Path) -> Path:
    path = folder / "vllm-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
        archive.writestr("vllm/vendored/x-1.dist-info/METADATA", "Name: x")
    return path


def _two_metadata(folder: Path) -> Path:
    path = wheels.make(folder, "vllm", "1")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other-1.dist-info/METADATA", "Name: other")
    return path


def _huge_metadata(folder: Path) -> Path:
    return wheels.make(folder, "vllm", "1", meta=wheels.metadata("vllm", "1") + b"\n" + b"x" * (5 << 20))


def _bad_name(folder: Path) -> Path:
    return wheels.make(folder, "vllm", "1").rename(folder / "vllm.whl")


def _bad_version(folder: Path) -> Path:
    return wheels.make(folder, "vllm", "1", meta=b"Metadata-Version: 2.1\nName: vllm\nVersion: one\n")


def _no_name(folder: Path) -> Path:
    return wheels.make(folder, "vllm", "1", meta=b"Metadata-Version: 2.1\nVersion: 1\n")


def _bad_python(folder: Path) -> Path:
    return wheels.make(folder, "vllm", "1", python="3.11 or newer")


def _bad_requirement(folder: Path) -> Path:
    return wheels.make(folder, "vllm", "1", requires=["numpy (>=1"])


BAD = [
    (_not_a_zip, "not a whole wheel"),
    (_cut, "not a whole wheel"),
    (_flipped, "not a whole wheel"),
    (_renamed, "the file name says vllm 2, METADATA says vllm 1"),
    (_without_metadata, "0 METADATA members"),
    (_two_metadata, "2 METADATA members"),
    (_huge_metadata, "METADATA claims"),
    (_bad_name, "Invalid wheel filename"),
    (_bad_version, "Invalid version: 'one'"),
    (_no_name, "METADATA says  1"),
    (_bad_python, "Invalid specifier"),
    (_bad_requirement, "numpy"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=lambda value: getattr(value, "__name__", ""))
def test_bad_wheels_are_refused(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    wheel = make(tmp_path)
    with pytest.raises(ArtefactError) as caught:
        read_wheel(wheel)
    assert message in caught.value.what
    assert wheel.name in caught.value.where


def test_no_such_wheel(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_wheel(tmp_path / "vllm-1-py3-none-any.whl")


def test_metadata_is_given_byte_by_byte(tmp_path: Path) -> None:
    odd = b"Metadata-Version: 2.1\r\nName: vllm\r\nVersion: 1\r\n\r\ncaf\xe9 \xe2\x82\xac\r\n"
    assert read_metadata(wheels.make(tmp_path, "vllm", "1", meta=odd)) == odd


def test_times_are_utc_with_microseconds() -> None:
    assert timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)) == "2026-01-31T12:00:00.000000Z"
    there = timezone(timedelta(hours=5, minutes=30))
    assert timestamp(datetime(2026, 1, 31, 12, tzinfo=there)) == "2026-01-31T06:30:00.000000Z"
    with pytest.raises(ConfigError, match="without a zone"):
        timestamp(datetime(2026, 1, 31, 12))  # noqa: DTZ001 - what is refused
