"""Every archive that must not be taken for a wheel, with the line that says why."""

import stat
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_spark.distro.elf.target import Capability
from vllm_spark.distro.wheel.archive import MAX_INFLATED, Wheel
from vllm_spark.distro.wheel.facts import read_facts
from vllm_spark.distro.wheel.names import WheelName, check_member_name
from vllm_spark.distro.wheel.record import verify_record
from vllm_spark.errors import ArtefactError, ConfigError, IntegrityError, SparkError

INFO = "demo-1.2.0.dist-info"
Build = Callable[..., Path]


def add(name: str, content: bytes = b"x", *, mode: int = stat.S_IFREG | 0o644) -> Callable[[zipfile.ZipFile], None]:
    def extra(archive: zipfile.ZipFile) -> None:
        entry = zipfile.ZipInfo(name)
        entry.filename = entry.orig_filename = name
        entry.external_attr = mode << 16
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # zipfile warns of the duplicate that a test wants
            archive.writestr(entry, content)

    return extra


def test_members(build_wheel: Build) -> None:
    with Wheel(build_wheel()) as wheel:
        assert wheel.dist_info == INFO
        assert wheel.read("demo/core.py") == b"print('hello')\n" * 40
        assert b"".join(wheel.raw_chunks("demo/core.py")) == b"print('hello')\n" * 40  # stored
        assert f"{INFO}/RECORD" in wheel.members


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (add("../evil.py"), r"\.\./evil\.py: path leaves the tree"),
        (add("demo/../../evil.py"), "path leaves the tree"),
        (add("/etc/passwd"), "absolute path"),
        (add("demo\\evil.py"), "backslash"),
        (add("C:/evil.py"), "drive"),
        (add("demo/./evil.py"), "plain form"),
        (add("demo//evil.py"), "plain form"),
        (add("demo/core.py"), "demo/core.py: appears twice"),
        (add("demo/link.py", b"/etc/passwd", mode=stat.S_IFLNK | 0o777), "is a link or a device"),
        (add("demo/fifo", mode=stat.S_IFIFO | 0o644), "is a link or a device"),
        (add("other-1.dist-info/METADATA"), r"has demo-1\.2\.0\.dist-info, other-1\.dist-info instead of"),
    ],
)
def test_unsafe_members(build_wheel: Build, extra: Callable[[zipfile.ZipFile], None], message: str) -> None:
    with pytest.raises(ArtefactError, match=message):
        Wheel(build_wheel(extra=extra))


def test_no_record(build_wheel: Build, tmp_path: Path) -> None:
    path = build_wheel()
    other = tmp_path / "no" / path.name
    other.parent.mkdir()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            if not name.endswith("RECORD"):
                new.writestr(name, old.read(name))
    with pytest.raises(ArtefactError, match="has no RECORD"):
        Wheel(other)


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04" + bytes(200)])
def test_not_a_zip(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "demo-1.2.0-py3-none-any.whl"
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match="not a zip file, or cut short"):
        Wheel(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Wheel(tmp_path / "demo-1.2.0-py3-none-any.whl")


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_truncated(build_wheel: Build, part: float) -> None:
    path = build_wheel()
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(ArtefactError, match="not a zip file, or cut short"):
        Wheel(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (8, struct.pack("<H", 1), "is encrypted or a patch"),
        (10, struct.pack("<H", 12), "compressed with method 12"),
        (24, struct.pack("<I", 0xFFFFFFF0), "unpack to 4294967280"),
    ],
)
def test_directory_that_lies(build_wheel: Build, field: int, value: bytes, message: str) -> None:
    path = build_wheel()
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + field : at + field + len(value)] = value
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match=message):
        Wheel(path)


def test_overlapping_members(build_wheel: Build) -> None:
    """The way to make a bomb of a few kilobytes: many names for the same compressed bytes."""
    path = build_wheel()
    content = bytearray(path.read_bytes())
    second = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 4)
    third = content.index(b"PK\x01\x02", second + 4)
    content[third + 42 : third + 46] = content[second + 42 : second + 46]
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match="overlaps another member"):
        Wheel(path)


def test_too_much_in_all(build_wheel: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_spark.distro.wheel.archive.MAX_INFLATED", 1000)
    with pytest.raises(ArtefactError, match="would unpack to"):
        Wheel(build_wheel())
    assert MAX_INFLATED > 815398154  # vLLM 0.33.0


def test_damaged_data(build_wheel: Build) -> None:
    path = build_wheel()
    with Wheel(path) as wheel:
        info = wheel.members["demo/many.abi3.so"]
    content = bytearray(path.read_bytes())
    content[info.header_offset + 500] ^= 0xFF
    path.write_bytes(content)
    with Wheel(path) as wheel, pytest.raises(IntegrityError, match=r"demo/many\.abi3\.so: damaged"):
        wheel.read("demo/many.abi3.so")


@pytest.mark.parametrize("at", [0, 8, 30])
def test_local_header_that_disagrees(build_wheel: Build, at: int) -> None:
    """What is copied raw is found through the local header, so that one must say the same as the directory."""
    path = build_wheel()
    with Wheel(path) as wheel:
        start = wheel.members["demo/_version.py"].header_offset
    content = bytearray(path.read_bytes())
    content[start + at] ^= 0x01
    path.write_bytes(content)
    with Wheel(path) as wheel, pytest.raises(ArtefactError, match="local header"):
        list(wheel.raw_chunks("demo/_version.py"))


def test_reading_is_bounded(build_wheel: Build) -> None:
    with Wheel(build_wheel()) as wheel:
        with pytest.raises(ArtefactError, match="larger than 10 bytes"):
            wheel.read("demo/core.py", limit=10)
        with pytest.raises(ArtefactError, match=r"nowhere\.py: missing"):
            wheel.read("nowhere.py")


@pytest.mark.parametrize(
    "name", ["demo.zip", "demo-1.2.0.whl", "demo-x.y-py3-none-any.whl", "demo-1.2.0-1a-py3-none-any.whl"]
)
def test_file_names(name: str) -> None:
    with pytest.raises(ArtefactError):
        WheelName.parse(Path(name))


def test_parts_of_a_name() -> None:
    name = WheelName.parse(Path("vllm-0.33.0+spark.1-cp38-abi3-manylinux_2_28_aarch64.whl"))
    assert (name.dist_info, name.project, name.machine, name.glibc) == (
        "vllm-0.33.0+spark.1.dist-info",
        "vllm",
        "aarch64",
        (2, 28),
    )
    many = WheelName.parse(Path("a_b-1-py2.py3-none-manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl"))
    assert (many.project, many.glibc, many.machine) == ("a-b", (2, 17), "x86_64")
    assert many.tags == [
        "py2-none-manylinux_2_17_x86_64",
        "py2-none-manylinux_2_28_x86_64",
        "py3-none-manylinux_2_17_x86_64",
        "py3-none-manylinux_2_28_x86_64",
    ]
    assert WheelName.parse(Path("a-1-py3-none-linux_x86_64.whl")).glibc is None
    assert WheelName.parse(Path("a-1-py3-none-linux_aarch64.whl")).machine == "aarch64"
    assert WheelName.parse(Path("a-1-py3-none-any.whl")).machine == "any"


@pytest.mark.parametrize("name", ["a/b.py", "a", "a/b/", "ä/ö.py", "a b/c..d"])
def test_good_member_names(name: str) -> None:
    assert check_member_name(name) is None


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_an_error_of_ours_or_harmless(build_wheel: Build, tmp_path: Path, data: st.DataObject) -> None:
    """Whatever bytes are hit, nothing but our own errors comes out, and what passes has every byte that RECORD says."""
    path = tmp_path / "demo-1.2.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    if not (tmp_path / "good").exists():
        build_wheel().rename(tmp_path / "good")
    content = bytearray((tmp_path / "good").read_bytes())
    directory = content.index(b"PK\x01\x02")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.one_of(st.integers(0, len(content) - 1), st.integers(directory, len(content) - 1)))
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        verify_record(path)
        read_facts(path, Capability(12, 1))
    except SparkError:
        return
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "good") as good:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            name: good.read(name) for name in good.namelist()
        }
