"""Bundles as folder and tar: the same bytes every time, and nothing strange accepted."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.fakes.package_index import PackageIndex
from tests.unit.index import wheels
from vllm_spark.cli.main import main
from vllm_spark.distro.bundle import make
from vllm_spark.distro.bundle.lock import Lock, Locked
from vllm_spark.distro.bundle.target import Target
from vllm_spark.distro.bundle.unpack import unpack
from vllm_spark.distro.bundle.verify import verify
from vllm_spark.errors import ArtefactError, ConfigError, IntegrityError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WHEEL = "wheels/vllm-1.0+spark.1-cp312-cp312-manylinux_2_39_aarch64.whl"


@pytest.fixture
def bundle(planned: make.Plan, tmp_path: Path) -> Path:
    return make.make(planned, tmp_path / "bundle")


@pytest.fixture
def tar(planned: make.Plan, tmp_path: Path) -> Path:
    return make.make(planned, tmp_path / "bundle.tar")


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_tar_and_folder_hold_the_same(bundle: Path, tar: Path, tmp_path: Path) -> None:
    assert verify(bundle) == verify(tar)
    assert contents(unpack(tar, tmp_path / "out")) == contents(bundle)
    assert {path.stat().st_mode & 0o777 for path in bundle.rglob("*")} == {0o644, 0o755}


def test_the_same_bytes_whoever_makes_it(planned: make.Plan, tar: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        again = make.make(planned, tmp_path / "elsewhere" / "bundle.tar")
    finally:
        os.umask(before)
    assert again.read_bytes() == tar.read_bytes()


def alter(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda b: (b / WHEEL).unlink(), r"spark\.1-\S+: missing"),
        (lambda b: alter(b / WHEEL), r"spark\.1-\S+: altered"),
        (lambda b: os.truncate(b / WHEEL, 100), r"spark\.1-\S+: altered"),
        (lambda b: (b / "wheels" / "evil-1-py3-none-any.whl").touch(), "evil-1-py3-none-any.whl: not listed"),
        (lambda b: (b / "sitecustomize.py").touch(), "sitecustomize.py: not listed"),
        (lambda b: alter(b / "install.sh"), r"install\.sh: altered"),
        (lambda b: (b / "lock.txt").unlink(), r"lock\.txt: missing, so this is no whole bundle"),
        (lambda b: (b / "SHA256SUMS").unlink(), "SHA256SUMS: missing"),
        (lambda b: (b / "SHA256SUMS").write_text("hello\n"), "SHA256SUMS:1: malformed line"),
        (lambda b: ((b / "lock.txt").unlink(), (b / "lock.txt").symlink_to("/etc/passwd")), "is a symbolic link"),
        (shutil.rmtree, "no such bundle"),
    ],
)
def test_a_damaged_folder_is_named(bundle: Path, damage: Callable[[Path], object], says: str) -> None:
    damage(bundle)
    with pytest.raises((ArtefactError, ConfigError), match=says):
        verify(bundle)


def test_sums_made_to_fit_do_not_hide_another_wheel(bundle: Path) -> None:
    alter(bundle / WHEEL)
    sums = (bundle / "SHA256SUMS").read_text().splitlines()
    digest = hashlib.sha256((bundle / WHEEL).read_bytes()).hexdigest()
    fitted = [f"{digest}  {WHEEL}" if line.endswith(WHEEL) else line for line in sums]
    (bundle / "SHA256SUMS").write_text("\n".join(fitted) + "\n")
    with pytest.raises(ArtefactError, match="lists other wheels"):
        verify(bundle)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_tar_cut_in_the_middle(tar: Path, tmp_path: Path, share: float, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(tar) as archive:
        last = max(info.offset_data + info.size for info in archive.getmembers())
    os.truncate(tar, int(last * share))
    for words in (["verify", str(tar)], ["unpack", str(tar), str(tmp_path / "out")]):
        assert main(["bundle", *words]) == 7
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_not_a_tar_at_all(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(os.urandom(4096))
    with pytest.raises(ArtefactError, match="not a tar"):
        verify(tmp_path / "x.tar")
    with pytest.raises(ArtefactError, match="not a tar"):
        unpack(tmp_path / "x.tar", tmp_path / "out")


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"x"
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data) if kind == tarfile.REGTYPE else 0
    return info, data


@pytest.mark.parametrize(
    "members",
    [
        [member("b/../../evil")],
        [member("../evil")],
        [member("/evil")],
        [member("b/ok"), member("c/ok")],
        [member("b/link", tarfile.SYMTYPE, "/etc/passwd"), member("b/link")],
        [member("b/dir", tarfile.SYMTYPE, ".."), member("b/dir/evil")],
        [member("b/hard", tarfile.LNKTYPE, "../../evil")],
        [member("b/fifo", tarfile.FIFOTYPE)],
        [member("b/dev", tarfile.CHRTYPE)],
        [],
    ],
    ids=["dots", "parent", "absolute", "two tops", "symlink", "through a link", "hard link", "fifo", "device", "empty"],
)
def test_an_unsafe_tar_writes_nothing(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    path = tmp_path / "box" / "deep" / "evil.tar"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    before = contents(tmp_path)
    with pytest.raises(ArtefactError):
        unpack(path, path.parent / "out")
    assert contents(tmp_path) == before
    with pytest.raises(ArtefactError):
        verify(path)


def test_a_wheel_altered_in_the_index_never_reaches_a_bundle(index: Path, tmp_path: Path) -> None:
    planned = make.plan(["vllm-spark"], str(index), Target())
    alter(index / "files" / WHEEL.removeprefix("wheels/"))
    with pytest.raises(IntegrityError, match="not what the index says"):
        make.make(planned, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_an_existing_bundle_is_not_touched(planned: make.Plan, bundle: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        make.make(planned, bundle)


def test_no_space_is_foreseen(planned: make.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = [
        *planned.lock.wheels[:2],
        *(Locked(project="x", version="1", name="x", sha256="0" * 64, size=1 << 60) for _ in "x"),
    ]
    with pytest.raises(ResourceError, match="MiB needed"):
        make.make(make.Plan((), Lock(Target(), tuple(huge)), 0), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_cut_download_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SPARK_CACHE", str(tmp_path / "cache"))
    wheel = wheels.make(tmp_path / "in", "pip", "1.0", content=b"#" * 5_000_000)
    data = wheel.read_bytes()
    with PackageIndex("pip", {wheel.name: data}, cut={wheel.name: 3_000_000}) as far:
        url = far.url.replace("/simple/", f"/files/{wheel.name}")
        pin = Locked(
            project="pip",
            version="1.0",
            name=wheel.name,
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
            url=url,
        )
        planned = make.Plan(("pip",), Lock(Target(), (pin,)), pin.size)
        with pytest.raises((IntegrityError, ResourceError), match="goes on where it stopped"):
            make.make(planned, tmp_path / "bundle")
        assert not (tmp_path / "bundle").exists()
        verify(make.make(planned, tmp_path / "bundle"))
        asked = [wanted for path, wanted in far.requests if path.startswith("/files/")]
    assert asked[0] == ""
    assert int(asked[1].removeprefix("bytes=").removesuffix("-")) > 0


def test_the_verb_says_the_sizes_first(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bundle", "make", "vllm-spark", "--index", str(index), "--out", str(tmp_path / "b")]
    assert main([*words, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "3 wheels, 0 MiB; 0 MiB to download" in out
    assert not (tmp_path / "b").exists()
    assert main(words) == 0
    assert main(["bundle", "verify", str(tmp_path / "b")]) == 0
    assert "3 wheels for Python 3.12 on aarch64, all sound" in capsys.readouterr().out
