"""The mirror: any sdist that is safe, nothing else; the same commit on every machine; several releases side by side."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from tests.fakes.upstream_repo import Upstream, lines, message, sdist
from vllm_spark.distro.series import patch as patches
from vllm_spark.distro.series.apply import stack
from vllm_spark.distro.upstream.mirror import Mirror
from vllm_spark.errors import ArtefactError, ConfigError

ODD = {
    'a b/tab\tquote"back\\slash': b"x",
    "uml\u00e4ut.py": b"\xff\xfe\r\n\0",
    "empty": b"",
    ".gitattributes": b"*.txt text eol=crlf\n*.py ident\n",
    "crlf.txt": b"a\r\nb\r\n",
    "ident.py": b"# $Id$\n",
    ".gitignore": b"*\n",
}


def test_every_byte_arrives(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path)
    upstream.release("1", ODD, executable=("empty",))
    with stack(upstream.mirror, "1") as onto:
        assert {name: onto.content(name) for name in ODD} == ODD
        modes = onto.repository("ls-files", "--stage", "-z").text
    assert modes.count("100755") == 1


def test_commit_depends_on_the_sdist_alone(tmp_path: Path) -> None:
    one, two = Mirror("vllm", tmp_path / "1.git"), Mirror("vllm", tmp_path / "2.git")
    a, b = sdist(tmp_path, "vllm", "1", {"f": b"1"}), sdist(tmp_path, "vllm", "2", {"f": b"2"})
    first = [one.add("1", a, "00"), one.add("2", b, "11")]
    second = [two.add("2", b, "11"), two.add("1", a, "00")][::-1]
    assert first == second
    assert one.add("1", a, "00") == first[0]


def test_other_sdist_of_the_same_version_replaces_it(tmp_path: Path) -> None:
    mirror = Mirror("vllm", tmp_path / "m.git")
    mirror.add("1", sdist(tmp_path, "vllm", "1", {"f": b"1"}), "00")
    new = mirror.add("1", sdist(tmp_path, "vllm", "1", {"f": b"2"}), "11")
    assert mirror.commit("1", "11") == new
    assert mirror.commit("1", "00") is None
    assert mirror.repository.line("cat-file", "blob", "v1:f") == "2"


def test_three_way_merge_across_releases(upstream: Upstream, tmp_path: Path) -> None:
    """A patch made on one release merges into another whose lines moved, with blobs from the mirror alone."""
    data = upstream.patch(message("model/a"), {"vllm/model.py": lines(1, 40, l20="twenty")})
    with stack(upstream.mirror, "0.34.0") as onto:
        assert onto.push(patches.parse("model/a.patch", data)).state == "failed"
        onto.rewind()
        onto.repository("apply", "--cached", "--3way", "-", stdin=data)
        assert onto.content("vllm/model.py") == b"new first line\n" + lines(1, 40, l20="twenty", l22="twenty-two")


def test_unknown_release(upstream: Upstream) -> None:
    with pytest.raises(ConfigError, match=r"no release 9\.9"), stack(upstream.mirror, "9.9"):
        pass


def _tar(path: Path, *members: tuple[str, dict[str, object]]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, fields in members:
            member = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(b"\0" * member.size))
    return path


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", {})],
        [("p/../../evil", {})],
        [("p/.git/config", {})],
        [("p/sub/.GIT/hooks/post-checkout", {})],
        [("p/new\nline", {})],
        [("p/f", {}), ("q/f", {})],
        [("top-level-file", {})],
        [("p/link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})],
        [("p/link", {"type": tarfile.SYMTYPE, "linkname": "../../x"})],
        [("p/f", {}), ("p/hard", {"type": tarfile.LNKTYPE, "linkname": "../x"})],
        [("p/fifo", {"type": tarfile.FIFOTYPE})],
        [("p/dev", {"type": tarfile.CHRTYPE})],
    ],
)
def test_unsafe_member_is_refused(tmp_path: Path, members: list[tuple[str, dict[str, object]]]) -> None:
    mirror = Mirror("p", tmp_path / "m.git")
    with pytest.raises(ArtefactError, match="refused") as caught:
        mirror.add("1", _tar(tmp_path / "p-1.tar.gz", *members), "00")
    assert caught.value.exit_code == 7
    assert mirror.commit("1", "00") is None


def test_link_inside_the_tree_stays_a_link(tmp_path: Path) -> None:
    path = _tar(tmp_path / "p-1.tar.gz", ("p/f", {}), ("p/l", {"type": tarfile.SYMTYPE, "linkname": "f"}))
    mirror = Mirror("p", tmp_path / "m.git")
    commit = mirror.add("1", path, "00")
    assert mirror.repository.line("ls-tree", commit, "l").startswith("120000 blob")


@pytest.mark.parametrize("cut", [10, 60, 9000])
def test_truncated_sdist(tmp_path: Path, cut: int) -> None:
    path = sdist(
        tmp_path,
        "vllm",
        "1",
        {"f": b"".join(hashlib.sha256(bytes([n, m])).digest() for n in range(9) for m in range(99))},
    )
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ArtefactError, match="no readable tar"):
        Mirror("vllm", tmp_path / "m.git").add("1", path, "00")


@pytest.mark.parametrize("data", [b"", b"<html>\nnot found\n</html>\n" * 99, b"\x1f\x8b" + b"\xff" * 600])
def test_what_is_no_archive_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "vllm-1.tar.gz"
    path.write_bytes(data)
    mirror = Mirror("vllm", tmp_path / "m.git")
    with pytest.raises(ArtefactError, match=r"no readable tar archive \(.+\)\. Next: delete it and retry$") as caught:
        mirror.add("1", path, "00")
    assert len(str(caught.value).splitlines()) == 1
    assert mirror.commit("1", "00") is None


def test_interrupted_import_is_taken_up(tmp_path: Path) -> None:
    """What a killed first run leaves behind: a half-made repository and a temporary pack, no tag."""
    mirror = Mirror("vllm", tmp_path / "m.git")
    (mirror.path / "objects" / "pack").mkdir(parents=True)
    (mirror.path / "objects" / "pack" / "tmp_pack_x").write_bytes(b"PACK")
    (mirror.path / "HEAD").write_text("ref: refs/heads/series\n")
    assert mirror.commit("1", "00") is None
    commit = mirror.add("1", sdist(tmp_path, "vllm", "1", {"f": b"1"}), "00")
    assert mirror.repository.line("cat-file", "blob", f"{commit}:f") == "1"
