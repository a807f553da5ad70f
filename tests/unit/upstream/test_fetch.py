"""What a download can do wrong, and what a person is told."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from tests.fakes.package_index import PackageIndex
from vllm_spark.distro.upstream.fetch import cached, fetch, fetch_url
from vllm_spark.distro.upstream.pins import FilePin
from vllm_spark.errors import ConfigError, IntegrityError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAME = "thing-1.0+local.1-py3-none-any.whl"
DATA = bytes(range(256)) * 20000


def pin(data: bytes = DATA, name: str = NAME) -> FilePin:
    return FilePin(role="wheel", name=name, sha256=hashlib.sha256(data).hexdigest(), size=len(data))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_SPARK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "downloads"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    with PackageIndex("thing", {NAME: DATA}) as index:
        monkeypatch.setenv("VLLM_SPARK_INDEX_URL", index.url)
        yield index


def files_asked(index: PackageIndex) -> list[tuple[str, str]]:
    return [(path, asked) for path, asked in index.requests if path.startswith("/files/")]


def test_second_call_asks_nobody(cache: Path, index: PackageIndex) -> None:
    assert fetch("thing", pin()).read_bytes() == DATA
    before = len(index.requests)
    assert fetch("thing", pin()) == cache / NAME
    assert len(index.requests) == before


def test_cut_download_is_named_and_resumed(cache: Path, index: PackageIndex) -> None:
    index.cut[NAME] = 3_000_000
    with pytest.raises((IntegrityError, ResourceError), match="goes on where it stopped"):
        fetch("thing", pin())
    assert not (cache / NAME).exists()
    assert fetch("thing", pin()).read_bytes() == DATA
    resumed = files_asked(index)[-1][1]
    assert resumed.startswith("bytes=")
    assert int(resumed[6:-1]) > 0


def test_altered_bytes_are_refused_and_forgotten(cache: Path, index: PackageIndex) -> None:
    good = pin()
    index.files[NAME] = DATA[:-1] + b"x"
    index.announced[NAME] = good.sha256
    with pytest.raises(IntegrityError, match=f"the pin says {good.sha256}"):
        fetch("thing", good)
    assert not (cache / NAME).exists()
    assert not (cache / f".{NAME}.part").exists()


def test_endless_file_stops_soon_after_the_pinned_size(cache: Path, index: PackageIndex) -> None:
    good = pin()
    index.files[NAME] = DATA + bytes(40_000_000)
    index.announced[NAME] = good.sha256
    with pytest.raises(IntegrityError):
        fetch("thing", good)
    assert list(cache.glob("*.whl")) == []


def test_pin_mismatch_is_seen_before_the_download(cache: Path, index: PackageIndex) -> None:
    with pytest.raises(IntegrityError, match="the index announces SHA-256"):
        fetch("thing", pin(DATA[::-1]))
    assert files_asked(index) == []


def test_damaged_cache_is_fetched_anew(cache: Path, index: PackageIndex, capsys: pytest.CaptureFixture[str]) -> None:
    fetch("thing", pin())
    (cache / NAME).write_bytes(DATA[:-1] + b"x")
    assert fetch("thing", pin()).read_bytes() == DATA
    assert "not what is pinned" in capsys.readouterr().err


def test_unknown_file_and_project(cache: Path, index: PackageIndex) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        fetch("thing", pin(name="other-1.0.tar.gz"))
    with pytest.raises(ConfigError, match="no project nothing"):
        fetch("nothing", pin())


def test_index_that_is_down(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SPARK_INDEX_URL", "http://127.0.0.1:9/simple/")
    with pytest.raises(ResourceError, match="does not answer"):
        fetch("thing", pin())


def test_two_at_once_download_once(cache: Path, index: PackageIndex) -> None:
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(fetch("thing", pin()).read_bytes())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [DATA] * 4
    assert len(files_asked(index)) == 1


@pytest.fixture
def tiny_disk(tmpfs: Callable[[str], Path]) -> Path:
    return tmpfs("2m")


def test_full_disk_is_foreseen(tiny_disk: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SPARK_CACHE", str(tiny_disk))
    with pytest.raises(ResourceError, match="MiB needed"):
        fetch("thing", pin())
    assert files_asked(index) == []


def test_read_only_cache(tiny_disk: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)
    monkeypatch.setenv("VLLM_SPARK_CACHE", os.fspath(tiny_disk / "cache"))
    with pytest.raises(ResourceError, match="not writable"):
        fetch("thing", pin())


def test_a_known_address_is_held_to_its_pin_and_resumed(cache: Path, index: PackageIndex) -> None:
    url = index.url.replace("/simple/", f"/files/{NAME}")
    index.cut[NAME] = 3_000_000
    with pytest.raises((IntegrityError, ResourceError), match="goes on where it stopped"):
        fetch_url(url, pin())
    have = cached(pin())
    assert 0 < have < len(DATA)
    assert fetch_url(url, pin()).read_bytes() == DATA
    assert cached(pin()) == len(DATA)
    assert [asked for _path, asked in files_asked(index)] == ["", f"bytes={have}-"]
    with pytest.raises(IntegrityError, match="the pin says"):
        fetch_url(url, FilePin(role="wheel", name="other.whl", sha256="0" * 64, size=len(DATA)))
