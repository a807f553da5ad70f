"""Patch and series files come back byte for byte, and what is malformed is refused by name and place."""

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.upstream_repo import message
from vllm_spark.distro.series import patch as patches
from vllm_spark.distro.series.store import SeriesFile, load, survey
from vllm_spark.errors import ConfigError, PatchError, SparkError

DATA = Path(__file__).parents[2] / "data" / "series"
GOOD = (DATA / "rules" / "P001" / "pass" / "model" / "a.patch").read_bytes()

words = st.text(alphabet=string.ascii_letters + "äß€.,", min_size=1, max_size=12)
names = st.from_regex(r"\A[a-z0-9]{1,6}(-[a-z0-9]{1,4})?/[a-z0-9]{1,6}\Z")
content = st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"?")), min_size=1, max_size=6)


@st.composite
def patch_files(draw: st.DrawFn) -> bytes:
    """A patch that creates a file with any bytes in it."""
    name, subject, added = draw(names), " ".join(draw(st.lists(words, min_size=1, max_size=30))), draw(content)
    folded = draw(st.booleans())
    head = f"From: A <a@example.org>\nDate: Sun, 1 Nov 2026 10:20:30 +0100\nSubject: {subject}\n"
    if folded:
        head += " and more\n"
    text = f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n{head}\n{message(name)}"
    diff = f"---\n f | {len(added)} +\n\ndiff --git a/f b/f\nnew file mode 100644\nindex {'0' * 40}..{'1' * 40}\n"
    hunk = f"--- /dev/null\n+++ b/f\n@@ -0,0 +1,{len(added)} @@\n"
    return (text + diff + hunk).encode() + b"".join(b"+" + line + b"\n" for line in added)


@given(patch_files())
def test_patch_comes_back(data: bytes) -> None:
    patch = patches.parse("a/b.patch", data)
    assert patch.format() == data
    assert patches.parse("a/b.patch", patch.format()) == patch
    assert not patch.problems
    body = b"".join(b"+" + line.encode("latin-1") + b"\n" for line in patch.changes[0].added)
    assert data.endswith(b"@@\n" + body)


@given(st.lists(st.one_of(names.map("{}.patch".format), words.map("# {}".format), st.just(""))))
def test_series_comes_back(lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    file = SeriesFile.parse(data)
    assert file.format() == data
    assert list(file.entries) == [line for line in lines if line and not line.startswith("#")]
    if len(set(file.entries)) == len(file.entries):
        assert file.with_entries(list(file.entries)) == file


def test_comment_goes_with_its_entry() -> None:
    file = SeriesFile.parse(b"# head of a\na/a.patch\n\n# of b\nb/b.patch\n# end\n")
    assert file.with_entries(["b/b.patch", "c/c.patch"]).format() == b"\n# of b\nb/b.patch\nc/c.patch\n# end\n"


@pytest.mark.parametrize("line", ["a.patch", "a/b.diff", "../a/b.patch", "/a/b.patch", "a/b.patch -p1", " a/b.patch"])
def test_malformed_entry(line: str) -> None:
    with pytest.raises(ConfigError, match=r"series:2.*malformed entry"):
        SeriesFile.parse(f"# first\n{line}\n".encode())


@pytest.mark.parametrize("data", [b"a/b.patch", b"\xff\n"])
def test_series_that_is_no_text(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^series: "):
        SeriesFile.parse(data)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b"@@ -4,7 +4,7 @@", b"@@ -4,7 +4 @@@", "malformed hunk header"),
        (b"@@ -4,7 +4,7 @@", b"@@ -4;7 +4,7 @@", "malformed hunk header"),
        (b"@@ -4,7 +4,7 @@", b"@@", "malformed hunk header"),
        (b"@@ -4,7 +4,7 @@", b"@@ -4,9 +4,9 @@", "malformed hunk"),
        (b"@@ -4,7 +4,7 @@", b"@@ -4,2 +4,2 @@", "malformed hunk"),
        (b" line 5\n", b"line 5\n", "malformed hunk"),
        (b"From 0000", b"Fro 0000", "first line"),
        (b"\n---\n", b"\n--\n", "no --- line"),
        (b"Date: ", b"Dat: ", "no Date header"),
        (b"Date: ", b"Date ", "malformed header"),
        (b"diff --git a/", b"diff a/", "no changes"),
    ],
)
def test_malformed_patch(old: bytes, new: bytes, what: str) -> None:
    assert old in GOOD
    with pytest.raises(PatchError, match=what) as caught:
        patches.parse("a/b.patch", GOOD.replace(old, new, 1))
    assert caught.value.where.startswith("a/b.patch")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", range(0, len(GOOD) - 1, 7))
def test_truncated_patch(cut: int) -> None:
    with pytest.raises(PatchError):
        patches.parse("a/b.patch", GOOD[:cut])


def test_non_utf8_header_and_message_survive() -> None:
    data = GOOD.replace(b"Without it", b"With\xf6ut it")
    assert patches.parse("a/b.patch", data).format() == data


@pytest.mark.parametrize(
    ("listing", "missing", "what"),
    [
        ("a/a.patch\na/a.patch\n", (), "listed more than once"),
        ("a/a.patch\nb/b.patch\n", (), "b/b.patch is listed but does not exist"),
        ("# none\n", (), "a/a.patch exists but is not listed"),
    ],
)
def test_folder_that_is_no_series(tmp_path: Path, listing: str, missing: tuple[str, ...], what: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "a.patch").write_bytes(GOOD)
    (tmp_path / "series").write_text(listing)
    assert len(list(survey(tmp_path).faults())) == 1
    with pytest.raises(PatchError, match=what) as caught:
        load(tmp_path)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("drop", ["Spark-Patch", "Spark-Class"])
def test_series_with_incomplete_trailers_is_not_used(tmp_path: Path, drop: str) -> None:
    (tmp_path / "a").mkdir()
    kept = b"".join(line for line in GOOD.splitlines(keepends=True) if not line.startswith(drop.encode()))
    (tmp_path / "a" / "a.patch").write_bytes(kept)
    (tmp_path / "series").write_text("a/a.patch\n")
    with pytest.raises(PatchError, match=f"missing trailer {drop}"):
        load(tmp_path)


def test_no_series(tmp_path: Path) -> None:
    with pytest.raises(SparkError, match="no such file") as caught:
        load(tmp_path / "nowhere")
    assert caught.value.exit_code == 2
