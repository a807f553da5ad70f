import hashlib
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_spark.distro.elf.target import Capability
from vllm_spark.distro.wheel.archive import Wheel
from vllm_spark.distro.wheel.record import verify_record
from vllm_spark.distro.wheel.repack import Repacked, repack
from vllm_spark.errors import ArtefactError, ConfigError, IntegrityError, ResourceError

INFO, NEW = "demo-1.2.0.dist-info", "demo-1.2.0+spark.1.dist-info"
TAG = "manylinux_2_28_x86_64"
GB10 = Capability(12, 1)
Build = Callable[..., Path]


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def rewrite(source: Path, out: Path, **options: object) -> Repacked:
    arguments = {"version": "1.2.0+spark.1", "platform_tag": TAG, "replaced": {}, **options}
    return repack(source, out, **arguments)  # type: ignore[arg-type]  # the test varies them


def test_name_version_and_tag(build_wheel: Build, tmp_path: Path) -> None:
    done = rewrite(build_wheel(), tmp_path / "out")
    assert done.path == tmp_path / "out" / f"demo-1.2.0+spark.1-cp38-abi3-{TAG}.whl"
    assert (done.size, done.sha256) == (done.path.stat().st_size, hashlib.sha256(done.path.read_bytes()).hexdigest())
    verify_record(done.path)
    new = contents(done.path)
    assert b"\nVersion: 1.2.0+spark.1\nRequires-Dist: numpy" in new[f"{NEW}/METADATA"]
    assert f"Tag: cp38-abi3-{TAG}\n".encode() in new[f"{NEW}/WHEEL"]
    assert b"'1.2.0+spark.1'" in new["demo/_version.py"]
    assert list(new)[-1] == f"{NEW}/RECORD"
    assert not [name for name in new if name.startswith(f"{INFO}/")]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    extra=st.dictionaries(
        st.from_regex(r"demo/[a-zé]{1,8}/[a-z]{1,8}\.(py|json|h)", fullmatch=True), st.binary(max_size=400), max_size=6
    ),
    change=st.binary(max_size=100),
)
def test_every_other_member_keeps_its_bytes(
    build_wheel: Build, tmp_path: Path, extra: dict[str, bytes], change: bytes
) -> None:
    source = build_wheel(extra)
    old = contents(source)
    done = rewrite(source, tmp_path / "out", replaced={"demo/core.py": change})
    new = contents(done.path)
    written = {f"{INFO}/METADATA", f"{INFO}/WHEEL", f"{INFO}/RECORD", "demo/_version.py", "demo/core.py"}
    assert {name: new[name] for name in old if name not in written} == {
        name: content for name, content in old.items() if name not in written
    }
    assert new["demo/core.py"] == change
    assert len(new) == len(old)
    verify_record(done.path)


def test_unchanged_members_are_copied_raw(build_wheel: Build, tmp_path: Path) -> None:
    source = build_wheel()
    done = rewrite(source, tmp_path / "out")
    with Wheel(source) as old, Wheel(done.path) as new:
        for name in ("demo/__init__.py", "demo/core.py", "demo/many.abi3.so"):
            assert b"".join(old.raw_chunks(name)) == b"".join(new.raw_chunks(name))
            assert old.members[name].compress_type == new.members[name].compress_type
    assert (done.copied, done.rewritten) == (3, 3)


def test_same_bytes_whatever_the_order_and_time(build_wheel: Build, tmp_path: Path, files: dict[str, bytes]) -> None:
    first = rewrite(build_wheel(), tmp_path / "a", keep_for=GB10)
    backwards = dict(reversed(files.items()))
    files.clear()
    files.update(backwards)
    second = rewrite(build_wheel(), tmp_path / "b", keep_for=GB10)
    assert first.path.read_bytes() == second.path.read_bytes()


def test_modes_and_times_are_fixed(build_wheel: Build, tmp_path: Path) -> None:
    done = rewrite(build_wheel(), tmp_path / "out", keep_for=GB10)
    with zipfile.ZipFile(done.path) as archive:
        for info in archive.infolist():
            executable = info.filename.endswith(".so")
            assert info.external_attr >> 16 == stat.S_IFREG | (0o755 if executable else 0o644)
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert info.create_system == 3
            assert info.extra == b""


def test_blanked_extension(build_wheel: Build, tmp_path: Path) -> None:
    source = build_wheel()
    done = rewrite(source, tmp_path / "out", keep_for=GB10)
    ((name, blanking),) = [(one.name, one.blanking) for one in done.blanked]
    assert name == "demo/many.abi3.so"
    assert blanking.dropped == {"sm_80": 1, "sm_90a": 2, "sm_100f": 1}
    assert blanking.emptied == 1
    assert done.size < source.stat().st_size
    assert len(contents(done.path)[name]) == len(contents(source)[name])
    verify_record(done.path)
    assert not [path for path in (tmp_path / "out").iterdir() if path != done.path]


def test_added_members_and_sbom(build_wheel: Build, tmp_path: Path) -> None:
    done = rewrite(build_wheel(), tmp_path / "out", added={"demo/new.py": b"1\n"}, sbom=b"{}")
    new = contents(done.path)
    assert new["demo/new.py"] == b"1\n"
    assert new[f"{NEW}/sboms/vllm-spark.cdx.json"] == b"{}"
    verify_record(done.path)


def test_a_replaced_version_file_is_stamped_too(build_wheel: Build, tmp_path: Path, files: dict[str, bytes]) -> None:
    patched = files["demo/_version.py"] + b"patched = True\n"
    done = rewrite(build_wheel(), tmp_path / "out", replaced={"demo/_version.py": patched})
    new = contents(done.path)["demo/_version.py"]
    assert new.endswith(b"patched = True\n")
    assert b"'1.2.0+spark.1'" in new


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replaced": {"demo/gone.py": b""}}, "demo/gone.py: is to be replaced, but the wheel has no such member"),
        ({"replaced": {f"{INFO}/RECORD": b""}}, "RECORD: is to be replaced, but is made anew"),
        ({"added": {"demo/core.py": b""}}, "demo/core.py: is to be added: exists already"),
        ({"added": {"../x.py": b""}}, "is to be added: path leaves the tree"),
    ],
)
def test_wrong_changes(build_wheel: Build, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ArtefactError, match=message):
        rewrite(build_wheel(), tmp_path / "out", **options)
    assert not list((tmp_path / "out").glob("*"))


def test_signed_wheel(build_wheel: Build, tmp_path: Path) -> None:
    source = build_wheel(extra=lambda archive: archive.writestr(f"{INFO}/RECORD.jws", b"{}"))
    with pytest.raises(ArtefactError, match="the wheel is signed"):
        rewrite(source, tmp_path / "out")


def test_extension_that_differs_from_record(build_wheel: Build, tmp_path: Path, files: dict[str, bytes]) -> None:
    """A blanked extension gets a new hash, which must not cover up that the old one was wrong."""
    with Wheel(build_wheel()) as wheel:
        record = wheel.read(f"{INFO}/RECORD")
    changed = bytearray(files["demo/many.abi3.so"])
    changed[-1] ^= 1
    source = build_wheel({"demo/many.abi3.so": bytes(changed)}, record=record)
    with pytest.raises(IntegrityError, match="differs from its hash in RECORD"):
        rewrite(source, tmp_path / "out", keep_for=GB10)
    assert not list((tmp_path / "out").iterdir())


def test_folder_that_is_a_file(build_wheel: Build, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match="not a folder"):
        rewrite(build_wheel(), tmp_path / "out")


def test_no_space(build_wheel: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_spark.paths.shutil.disk_usage", lambda _: SimpleNamespace(free=5))
    with pytest.raises(ResourceError, match="MiB needed"):
        rewrite(build_wheel(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
