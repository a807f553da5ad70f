import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark.distro.aot.store import Store, Unpacked
from vllm_spark.errors import ConfigError, IntegrityError, SparkError

KEY, OTHER = "ab" * 32, "cd" * 32
NAME = "sm_121-ptxas-13.0.88"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    folder = tmp_path / NAME
    folder.mkdir()
    return Store(folder)


def test_what_is_saved_is_loaded(store: Store) -> None:
    assert store.load(KEY) is None
    store.save(KEY, b"image")
    assert (store.load(KEY), store.load(OTHER), store.keys()) == (b"image", None, [KEY])
    store.remove(KEY)
    store.remove(KEY)
    assert store.keys() == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:0],
        lambda data: data[:32],
    ],
)
def test_damage_is_found(store: Store, damage: Callable[[bytes], bytes]) -> None:
    store.save(KEY, b"compiled image")
    path = store.folder / f"{KEY}.image"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(IntegrityError, match=f"{KEY}.image: compiled image is damaged"):
        store.load(KEY)


def test_packed_and_taken_over(store: Store, tmp_path: Path) -> None:
    for key in (OTHER, KEY):
        store.save(key, key.encode())
    (store.folder / ".lock").touch()
    first, second = tmp_path / "a.tar", tmp_path / "b.tar"
    assert (store.pack(first), store.pack(second)) == (2, 2)
    assert first.read_bytes() == second.read_bytes()
    there = Store(tmp_path / "elsewhere" / NAME)
    there.folder.mkdir(parents=True)
    assert there.unpack(first) == Unpacked(2, 0)
    assert there.unpack(first) == Unpacked(0, 2)
    assert there.load(KEY) == KEY.encode()


def test_a_damaged_entry_is_replaced_and_not_packed(store: Store, tmp_path: Path) -> None:
    store.save(KEY, b"image")
    store.pack(tmp_path / "a.tar")
    (store.folder / f"{KEY}.image").write_bytes(b"rot")
    with pytest.raises(IntegrityError, match="damaged"):
        store.pack(tmp_path / "b.tar")
    assert not (tmp_path / "b.tar").exists()
    assert store.unpack(tmp_path / "a.tar") == Unpacked(1, 0)
    assert store.load(KEY) == b"image"


def test_a_differing_entry_is_refused(store: Store, tmp_path: Path) -> None:
    store.save(KEY, b"image")
    store.pack(tmp_path / "a.tar")
    store.save(KEY, b"another")
    with pytest.raises(IntegrityError, match="differs from the one in the cache"):
        store.unpack(tmp_path / "a.tar")
    assert store.load(KEY) == b"another"


def test_nothing_to_pack(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no compiled images to pack"):
        store.pack(tmp_path / "a.tar")


def packed(path: Path, name: str, content: bytes = b"x" * 9, kind: bytes = tarfile.REGTYPE) -> Path:
    data = hashlib.sha256(content).digest() + content
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.size, member.linkname = kind, len(data) * (kind == tarfile.REGTYPE), "/etc/passwd"
        tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        (f"../{KEY}.image", tarfile.REGTYPE, "is for .., not for sm_121"),
        (f"{NAME}/../{KEY}.image", tarfile.REGTYPE, "is for"),
        (f"sm_90-ptxas-13.0.88/{KEY}.image", tarfile.REGTYPE, "is for sm_90-ptxas-13.0.88, not for sm_121"),
        (f"sm_121-ptxas-13.2.78/{KEY}.image", tarfile.REGTYPE, "is for sm_121-ptxas-13.2.78"),
        (f"{NAME}/{KEY[:-1]}.image", tarfile.REGTYPE, "no packed cache"),
        (f"{NAME}/evil.so", tarfile.REGTYPE, "no packed cache"),
        (f"{NAME}/{KEY}.image", tarfile.SYMTYPE, "no packed cache"),
        (f"{NAME}/{KEY}.image", tarfile.DIRTYPE, "no packed cache"),
    ],
)
def test_foreign_files_are_refused(store: Store, tmp_path: Path, name: str, kind: bytes, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        store.unpack(packed(tmp_path / "x.tar", name, kind=kind))
    assert store.keys() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME, "x.tar"]


def test_files_that_are_no_archive(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    for content in (b"", b"garbage" * 100):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="no packed cache"):
            store.unpack(path)
    with pytest.raises(ConfigError, match="no such file"):
        store.unpack(tmp_path / "missing.tar")
    store.save(KEY, b"image" * 200)
    store.pack(path)
    store.remove(KEY)
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(SparkError):
        store.unpack(path)
    assert store.keys() == []
