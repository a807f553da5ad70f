import pytest

from vllm_spark.distro.wheel.stamp import stamp_metadata, stamp_version_file, stamp_wheel
from vllm_spark.errors import ArtefactError

TEXT = b"__version__ = version = '0.33.0'\n__version_tuple__ = version_tuple = (0, 33, 0)\n"


def test_metadata_changes_one_field() -> None:
    old = b"Metadata-Version: 2.4\nName: vllm\nVersion: 0.33.0\nRequires-Dist: x\n\nVersion: 0.33.0\n"
    new = b"Metadata-Version: 2.4\nName: vllm\nVersion: 0.33.0+spark.1\nRequires-Dist: x\n\nVersion: 0.33.0\n"
    assert stamp_metadata(old, "0.33.0", "0.33.0+spark.1") == new
    assert stamp_metadata(old.replace(b"\n", b"\r\n"), "0.33.0", "0.33.0+spark.1") == new.replace(b"\n", b"\r\n")


@pytest.mark.parametrize(
    "data",
    [b"Name: a\n", b"Name: a\n\nVersion: 1\n", b"Version: 1\nVersion: 1\n", b"Version: 2\n", b"Metadata-Version: 1\n"],
)
def test_metadata_that_cannot_be_stamped(data: bytes) -> None:
    with pytest.raises(ArtefactError, match="Version is"):
        stamp_metadata(data, "1", "1+x")


def test_wheel_tags() -> None:
    old = b"Wheel-Version: 1.0\nGenerator: g\nTag: a-b-c\nTag: d-e-f\n\n"
    assert stamp_wheel(old, ["x-y-z"]) == b"Wheel-Version: 1.0\nGenerator: g\nTag: x-y-z\n\n"
    assert stamp_wheel(b"Tag: a-b-c", ["x-y-z", "x-y-w"]) == b"Tag: x-y-z\nTag: x-y-w\n"


@pytest.mark.parametrize("data", [b"", b"Wheel-Version: 1.0\n", b"Tag: a\nBuild: 1\nTag: b\n"])
def test_wheel_that_cannot_be_stamped(data: bytes) -> None:
    with pytest.raises(ArtefactError, match="groups of Tag fields"):
        stamp_wheel(data, ["x"])


def test_version_file() -> None:
    """What setuptools-scm would have written: the local part is one string at the tuple's end."""
    new = stamp_version_file(TEXT + b"__commit_id__ = commit_id = 'g4ba787ec9'\n", "0.33.0+spark.1")
    assert new == (
        b"__version__ = version = '0.33.0+spark.1'\n"
        b"__version_tuple__ = version_tuple = (0, 33, 0, 'spark.1')\n"
        b"__commit_id__ = commit_id = 'g4ba787ec9'\n"
    )
    scope: dict[str, object] = {}
    exec(compile(new, "_version.py", "exec"), scope)  # noqa: S102 - our own three lines
    assert scope["version"] == scope["__version__"] == "0.33.0+spark.1"


@pytest.mark.parametrize("data", [b"", TEXT + TEXT, TEXT.replace(b"version_tuple = ", b"")])
def test_version_file_that_cannot_be_stamped(data: bytes) -> None:
    with pytest.raises(ArtefactError, match="assigns the version"):
        stamp_version_file(data, "1.0")


def test_only_plain_releases() -> None:
    with pytest.raises(ArtefactError, match="only plain releases"):
        stamp_version_file(TEXT, "0.33.0rc1")
