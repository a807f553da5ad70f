"""Building the folder: whole or not at all, always the same bytes, and nothing in it ever changes or goes."""

import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.unit.index import wheels
from vllm_spark import paths
from vllm_spark.distro.index import tree
from vllm_spark.distro.index.facts import PatchNote, ProjectFact, ReleaseFact
from vllm_spark.distro.index.verify import verify
from vllm_spark.errors import ArtefactError, ConfigError, IntegrityError, ResourceError

WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)
RELEASE = ReleaseFact("vllm-spark", "0.33.0.1", vllm="0.33.0", cuda="13.0", torch="2.14.0", python=">=3.11")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".index.lock"
    }


def build(out: Path, tmp: Path, *counts: int) -> tree.Built:
    built = [tree.build(out, wheels.release(tmp / "in", count), uploaded=WHEN) for count in counts]
    return built[-1]


def test_layout(tmp_path: Path) -> None:
    out = tmp_path / "index"
    built = build(out, tmp_path, 1)
    vllm = "files/vllm-0.33.0+spark.1-cp38-abi3-manylinux_2_28_aarch64.whl"
    spark = "files/vllm_spark-0.33.0.1-cp311-abi3-manylinux_2_34_aarch64.whl"
    pages = [f"simple/{folder}index.{kind}" for folder in ("", "vllm/", "vllm-spark/") for kind in ("html", "json")]
    wanted = {vllm, f"{vllm}.metadata", spark, f"{spark}.metadata", *pages, "index.html", "index.jsonl", "SHA256SUMS"}
    assert set(contents(out)) == wanted == set(built.written)
    assert b"%2Bspark.1" in (out / "simple/vllm/index.html").read_bytes()
    assert verify(out, with_clients=False).problems == ()


def test_a_second_run_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "index"
    build(out, tmp_path, 1, 2)
    before = contents(out)
    again = build(out, tmp_path, 1, 2)
    assert (again.added, again.written, again.kept) == ((), (), 4)
    assert tree.build(out).written == ()
    assert contents(out) == before


def test_older_files_keep_their_bytes(tmp_path: Path) -> None:
    out = tmp_path / "index"
    build(out, tmp_path, 1)
    before = {name: data for name, data in contents(out).items() if name.startswith("files/")}
    old_page = (out / "simple/vllm/index.html").read_text().splitlines()
    for count in range(2, 12):
        build(out, tmp_path, count)
    after = contents(out)
    assert {name: after[name] for name in before} == before
    assert set(old_page) <= set((out / "simple/vllm/index.html").read_text().splitlines())


def test_order_of_releases_does_not_matter(tmp_path: Path) -> None:
    build(tmp_path / "a", tmp_path, 1, 2, 10)
    build(tmp_path / "b", tmp_path, 10, 1, 2)
    both = [*wheels.release(tmp_path / "in", 1), *wheels.release(tmp_path / "in", 10)]
    tree.build(tmp_path / "c", [*both, *wheels.release(tmp_path / "in", 2)], uploaded=WHEN)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == contents(tmp_path / "c")


def test_surroundings_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "a", tmp_path, 1)
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    monkeypatch.setenv("LC_ALL", "tr_TR.UTF-8")
    was = os.umask(0o077)
    try:
        build(tmp_path / "deep" / "er" / "b", tmp_path, 1)
    finally:
        os.umask(was)
    assert contents(tmp_path / "a") == contents(tmp_path / "deep" / "er" / "b")
    folders = {path for path in (tmp_path / "deep").rglob("*") if path.is_dir()}
    assert len(folders) == 6
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o755}
    served = [path for path in (tmp_path / "deep").rglob("*") if path.is_file() and path.name != ".index.lock"]
    assert {path.stat().st_mode & 0o777 for path in served} == {0o644}


def test_provenance_is_linked(tmp_path: Path) -> None:
    wheel = wheels.make(tmp_path / "in", "vllm-spark", "1")
    tree.build(tmp_path / "index", [wheel], provenance={wheel.name: "https://example.org/p?a=1&b=2"})
    page = (tmp_path / "index/simple/vllm-spark/index.html").read_text()
    assert 'data-provenance="https://example.org/p?a=1&amp;b=2"' in page


def test_published_elsewhere(tmp_path: Path) -> None:
    wheel = wheels.make(tmp_path / "in", "vllm", wheels.VLLM)
    (fact,) = tree.build(tmp_path / "index", [wheel], files_url="https://example.org/v1/").added
    assert fact.url == "https://example.org/v1/vllm-0.33.0%2Bspark.1-py3-none-any.whl"
    assert (tmp_path / "index" / "files" / wheel.name).is_file()


def test_the_same_name_with_other_bytes_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "index"
    build(out, tmp_path, 1)
    before = contents(out)
    other = wheels.release(tmp_path / "other", 1, content=b"# changed\n")
    with pytest.raises(IntegrityError, match="never changes") as caught:
        tree.build(out, [*wheels.release(tmp_path / "in", 2), *other])
    assert caught.value.exit_code == 9
    assert contents(out) == before


def test_two_new_wheels_of_one_name_are_refused(tmp_path: Path) -> None:
    first = wheels.make(tmp_path / "a", "vllm", "1")
    second = wheels.make(tmp_path / "b", "vllm", "1", content=b"# other\n")
    with pytest.raises(IntegrityError):
        tree.build(tmp_path / "index", [first, second])
    assert tree.build(tmp_path / "index", [first, first]).kept == 0


def test_a_release_is_described_once(tmp_path: Path) -> None:
    out = tmp_path / "index"
    release = wheels.release(tmp_path / "in", 1)
    tree.build(out, release, releases=[RELEASE])
    assert tree.build(out, release, releases=[RELEASE]).written == ()
    other = ReleaseFact("vllm-spark", "0.33.0.1", vllm="0.33.0", cuda="13.1", torch="2.14.0", python=">=3.11")
    with pytest.raises(IntegrityError, match="described otherwise"):
        tree.build(out, releases=[other])


@pytest.mark.parametrize(
    "given",
    [
        {"base_url": "javascript:alert(1)"},
        {"base_url": 'https://example.org/"onload="x'},
        {"files_url": "nowhere"},
        {"provenance": {"vllm-0.33.0+spark.1-cp38-abi3-manylinux_2_28_aarch64.whl": "nowhere"}},
        {"projects": [ProjectFact("vllm", tracks=("ftp://example.org",))]},
        {"projects": [ProjectFact("Not Normal")]},
        {
            "releases": [
                ReleaseFact("v", "1", "1", "1", "1", "1", patches=(PatchNote("a", "b", upstream="javascript:x"),))
            ]
        },
        {"releases": [ReleaseFact("v", "one", "1", "1", "1", "1")]},
    ],
    ids=["script", "quote", "files", "provenance", "scheme", "name", "patch", "version"],
)
def test_values_that_cannot_be_recorded_are_refused(tmp_path: Path, given: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        tree.build(tmp_path / "index", wheels.release(tmp_path / "in", 1), **given)  # type: ignore[arg-type]
    assert contents(tmp_path / "index") == {}


def _edit(name: str) -> Callable[[Path], None]:
    def act(out: Path) -> None:
        (out / name).write_bytes((out / name).read_bytes().replace(b"0.33.0", b"0.33.9"))

    return act


def _remove(name: str) -> Callable[[Path], None]:
    return lambda out: (out / name).unlink()


def _stray(name: str) -> Callable[[Path], None]:
    def act(out: Path) -> None:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(b"stray")

    return act


def _link(out: Path) -> None:
    page = out / "simple/vllm/index.html"
    data = page.read_bytes()
    (out.parent / "elsewhere.html").write_bytes(data)
    page.unlink()
    page.symlink_to(out.parent / "elsewhere.html")


def _linked_folder(out: Path) -> None:
    (out / "simple").rename(out.parent / "simple")
    (out / "simple").symlink_to(out.parent / "simple")


def _linked_project(out: Path) -> None:
    (out / "simple" / "vllm").rename(out.parent / "vllm")
    (out / "simple" / "vllm").symlink_to(out.parent / "vllm")


WHEEL = "files/vllm-0.33.0+spark.1-cp38-abi3-manylinux_2_28_aarch64.whl"


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (_edit("simple/vllm/index.html"), "edited by hand"),
        (_edit("simple/vllm-spark/index.json"), "edited by hand"),
        (_edit("index.html"), "edited by hand"),
        (_edit("index.jsonl"), "edited by hand"),
        (_edit(f"{WHEEL}.metadata"), "edited by hand"),
        (_remove(f"{WHEEL}.metadata"), "missing"),
        (_remove("index.jsonl"), "missing"),
        (_remove(WHEEL), "missing"),
        (_stray("files/vllm-9-py3-none-any.whl"), "not put there by the index"),
        (_stray("simple/torch/index.html"), "not put there by the index"),
        (_stray(WHEEL), "5 bytes, the index recorded"),
        (_link, "is a symbolic link"),
        (_linked_folder, "simple: is a symbolic link"),
        (_linked_project, "simple/vllm: not put there by the index"),
        (_stray("SHA256SUMS"), "malformed line"),
    ],
)
def test_a_folder_edited_by_hand_is_refused(tmp_path: Path, act: Callable[[Path], None], message: str) -> None:
    out = tmp_path / "index"
    build(out, tmp_path, 1)
    act(out)
    before = contents(out)
    with pytest.raises(ArtefactError) as caught:
        build(out, tmp_path, 2)
    assert message in caught.value.what
    assert contents(out) == before


def test_a_lost_page_is_written_anew(tmp_path: Path) -> None:
    out = tmp_path / "index"
    build(out, tmp_path, 1)
    before = contents(out)
    (out / "simple/vllm/index.html").unlink()
    assert tree.build(out).written == ("simple/vllm/index.html",)
    assert contents(out) == before


@pytest.mark.parametrize("name", ["index.html", "simple/x.html", "files/x.whl", "index.jsonl"])
def test_a_folder_that_is_something_else_is_left_alone(tmp_path: Path, name: str) -> None:
    out = tmp_path / "site"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    with pytest.raises(ConfigError, match="not an index"):
        build(out, tmp_path, 1)
    assert contents(out) == {name: b"mine"}


def test_other_files_beside_the_index_stay(tmp_path: Path) -> None:
    out = tmp_path / "site"
    (out / ".git").mkdir(parents=True)
    (out / ".git" / "HEAD").write_text("ref")
    (out / "CNAME").write_text("example.org")
    build(out, tmp_path, 1)
    assert (out / "CNAME").read_text() == "example.org"
    assert (out / ".git" / "HEAD").read_text() == "ref"
    assert verify(out, with_clients=False).problems == ()


class Stopped(Exception):
    """Stands for a kill: nothing of ours catches it by name."""


@pytest.mark.parametrize("moves", range(14))
def test_a_run_that_dies_while_moving_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    build(tmp_path / "whole", tmp_path, 1, 2)
    out = tmp_path / "index"
    build(out, tmp_path, 1)
    done = 0
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        nonlocal done
        if ".commit" in self.parts:
            if done == moves:
                raise Stopped
            done += 1
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        if moves < 11:
            with pytest.raises(Stopped):
                build(out, tmp_path, 2)
        else:
            build(out, tmp_path, 2)
    tree.build(out)
    assert contents(out) == contents(tmp_path / "whole")


def test_a_run_that_fails_while_laying_out_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "index"
    build(out, tmp_path, 1)
    before = contents(out)
    real = paths.atomic_write
    for allowed in range(8):
        left = allowed

        def write(path: Path, data: bytes | str) -> None:
            nonlocal left
            if left == 0:
                raise Stopped
            left -= 1
            real(path, data)

        with monkeypatch.context() as patch:
            patch.setattr(paths, "atomic_write", write)
            with pytest.raises(Stopped):
                build(out, tmp_path, 2)
        assert contents(out) == before


def test_one_run_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "index"
    with paths.lock(out / ".index.lock"), pytest.raises(ResourceError, match="another run"):
        build(out, tmp_path, 1)


def test_sums_are_true(tmp_path: Path) -> None:
    out = tmp_path / "index"
    build(out, tmp_path, 1, 2)
    lines = (out / "SHA256SUMS").read_text().splitlines()
    found = {line[66:]: line[:64] for line in lines}
    held = {name: hashlib.sha256(data).hexdigest() for name, data in contents(out).items() if name != "SHA256SUMS"}
    assert found == held
