"""Which files are a release, taking one back, going back to the one before, and the lines people type."""

from pathlib import Path

import pytest

from tests.unit.index import wheels
from vllm_spark.distro.index import lines, releases, tree
from vllm_spark.distro.index.state import load
from vllm_spark.distro.index.verify import verify
from vllm_spark.errors import ArtefactError, ConfigError, NothingToDo


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "index"
    for count in (1, 2, 10):
        tree.build(out, wheels.release(tmp_path / "in", count), base_url="https://example.org/cu130/")
    return out


def test_a_release_is_both_wheels(out: Path) -> None:
    files = lines.members(load(out), "0.33.0.2")
    assert [(fact.project, fact.version) for fact in files] == [("vllm", "0.33.0+spark.2"), ("vllm-spark", "0.33.0.2")]


def test_yank_marks_both_and_drops_none(out: Path) -> None:
    before = load(out)
    marked = releases.yank(out, "0.33.0.10", "wedges the host under <load>")
    assert {fact.project for fact in marked} == {"vllm", "vllm-spark"}
    after = load(out)
    assert [fact.filename for fact in after.files] == [fact.filename for fact in before.files]
    reasons = {fact.filename: fact.yanked for fact in after.files if fact.yanked}
    assert set(reasons.values()) == {"wedges the host under <load>"}
    assert len(reasons) == 2
    assert b'data-yanked="wedges the host under &lt;load&gt;"' in (out / "simple/vllm/index.html").read_bytes()
    assert verify(out, with_clients=False).problems == ()
    assert lines.current(after) == "0.33.0.2"


def test_a_vllm_that_a_good_release_needs_is_not_yanked(tmp_path: Path) -> None:
    out = tmp_path / "index"
    tree.build(out, wheels.release(tmp_path / "in", 1))
    shared = wheels.make(tmp_path / "in", "vllm-spark", "0.33.0.2", requires=["vllm==0.33.0+spark.1"])
    tree.build(out, [shared])
    assert [fact.project for fact in releases.yank(out, "0.33.0.2", "broken")] == ["vllm-spark"]
    assert {fact.project for fact in releases.yank(out, "0.33.0.1", "broken")} == {"vllm", "vllm-spark"}


def test_the_first_reason_stays(out: Path) -> None:
    releases.yank(out, "0.33.0.2", "first")
    with pytest.raises(NothingToDo):
        releases.yank(out, "0.33.0.2", "second")
    assert {fact.yanked for fact in load(out).files} == {None, "first"}


def test_building_a_yanked_wheel_again_does_not_bring_it_back(out: Path, tmp_path: Path) -> None:
    releases.yank(out, "0.33.0.2", "broken")
    assert tree.build(out, wheels.release(tmp_path / "in", 2)).written == ()
    assert lines.versions(load(out))["0.33.0.2"] == "broken"


@pytest.mark.parametrize(
    ("version", "reason", "message"),
    [
        ("0.33.0.3", "x", "it has: 0.33.0.1, 0.33.0.2, 0.33.0.10"),
        ("banana", "x", "give a version"),
        ("0.33.0.1", "  ", "needs a reason"),
    ],
)
def test_yank_refuses(out: Path, version: str, reason: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        releases.yank(out, version, reason)


def test_rollback_goes_to_the_version_before_the_newest(out: Path) -> None:
    back = releases.rollback(out)
    assert back.version == "0.33.0.2"
    vllm, spark = back.files
    assert back.lines.pip == (
        "python -m pip install --index-url https://example.org/cu130/simple/ --no-deps --require-hashes"
        " -r /dev/stdin <<'END'\n"
        f"vllm==0.33.0+spark.2 --hash=sha256:{vllm.sha256}\n"
        f"vllm-spark==0.33.0.2 --hash=sha256:{spark.sha256}\n"
        "END\n"
        "python -m pip install vllm==0.33.0+spark.2 vllm-spark==0.33.0.2"
    )
    assert back.lines.uv.startswith("uv pip install --default-index https://example.org/cu130/simple/ --no-deps")


def test_rollback_skips_what_is_yanked(out: Path) -> None:
    releases.yank(out, "0.33.0.2", "broken")
    assert releases.rollback(out).version == "0.33.0.1"
    releases.yank(out, "0.33.0.10", "broken too")
    assert releases.rollback(out).version == "0.33.0.1"


def test_rollback_to_a_named_version(out: Path) -> None:
    assert releases.rollback(out, "0.33.0.01").version == "0.33.0.1"
    releases.yank(out, "0.33.0.1", "broken")
    with pytest.raises(ConfigError, match="yanked: broken"):
        releases.rollback(out, "0.33.0.1")


def test_nothing_to_go_back_to(tmp_path: Path) -> None:
    out = tmp_path / "index"
    tree.build(out, wheels.release(tmp_path / "in", 1))
    with pytest.raises(ConfigError, match=r"it has: 0\.33\.0\.1"):
        releases.rollback(out)
    tree.build(tmp_path / "empty")
    with pytest.raises(ConfigError, match="none at all"):
        releases.rollback(tmp_path / "empty")


def test_no_index_is_not_made_by_asking(tmp_path: Path) -> None:
    for ask in (lambda: releases.rollback(tmp_path / "x"), lambda: releases.yank(tmp_path / "x", "1", "r")):
        with pytest.raises(ArtefactError, match="no SHA256SUMS"):
            ask()
    assert not (tmp_path / "x").exists()


def test_several_files_of_a_version_give_several_hashes(tmp_path: Path) -> None:
    out = tmp_path / "index"
    made = [wheels.make(tmp_path, "vllm-spark", "1", tag=f"py3-none-manylinux_2_{n}_aarch64") for n in (28, 34)]
    tree.build(out, made)
    files = lines.members(load(out), "1")
    assert lines.install("https://example.org", files).pip.count("--hash=sha256:") == 2
