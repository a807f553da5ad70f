"""Each rule passes on a good index and names the fault in a bad one."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.unit.index import wheels
from vllm_spark.distro.index import pages, releases, tree
from vllm_spark.distro.index.folder import SUMS_FILE
from vllm_spark.distro.index.state import State, dump, load
from vllm_spark.distro.index.verify import RULES, verify
from vllm_spark.errors import ArtefactError, ToolMissing

VLLM = "files/vllm-0.33.0+spark.1-cp38-abi3-manylinux_2_28_aarch64.whl"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "index"
    tree.build(out, wheels.release(tmp_path / "in", 1))
    return out


def _replace(out: Path, name: str, old: bytes, new: bytes) -> None:
    data = (out / name).read_bytes()
    assert old in data
    (out / name).write_bytes(data.replace(old, new))


def _no_fragment(out: Path) -> None:
    page = out / "simple/vllm/index.html"
    page.write_text(page.read_text().replace("#sha256=", "#other="))


def _other_digest_in_json(out: Path) -> None:
    digest = load(out).files[0].sha256.encode()
    _replace(out, "simple/vllm/index.json", digest, digest[::-1])


def _extra_link(out: Path) -> None:
    _replace(out, "simple/vllm/index.html", b"</body>", b'<a href="x.whl">vllm-9-py3-none-any.whl</a></body>')


def _link_lost(out: Path) -> None:
    page = out / "simple/vllm/index.html"
    page.write_text("\n".join(line for line in page.read_text().splitlines() if "<a " not in line))


def _page_lost(out: Path) -> None:
    (out / "simple/vllm/index.json").unlink()


def _page_gone(out: Path) -> None:
    (out / "simple/vllm/index.html").unlink()


def _no_json(out: Path) -> None:
    (out / "simple/vllm/index.json").write_text("{")


def _sidecar_changed(out: Path) -> None:
    _replace(out, f"{VLLM}.metadata", b">=3.11", b">=3.10")


def _sidecar_lost(out: Path) -> None:
    (out / f"{VLLM}.metadata").unlink()


def _page_edited(out: Path) -> None:
    _replace(out, "index.html", b"vLLM for", b"vLLM from")


def _stray_page(out: Path) -> None:
    (out / "simple/vllm/old.html").write_text("")


def _only_python_4(out: Path) -> None:
    shutil.rmtree(out)
    tree.build(out, [wheels.make(out.parent, "vllm-spark", "1", python=">=4")])


def _plain_linux_tag(out: Path) -> None:
    shutil.rmtree(out)
    tree.build(out, [wheels.make(out.parent, "vllm-spark", "1", tag="cp311-abi3-linux_aarch64")])


def _wheel_lost(out: Path) -> None:
    (out / VLLM).unlink()


def _wheel_altered(out: Path) -> None:
    _replace(out, VLLM, b"VALUE = 1", b"VALUE = 2")


def _wheel_cut(out: Path) -> None:
    (out / VLLM).write_bytes((out / VLLM).read_bytes()[:-1])


FAULTS = [
    ("I001", _no_fragment, "sha256 None"),
    ("I001", _other_digest_in_json, "index.json: vllm-0.33.0+spark.1"),
    ("I001", _extra_link, "vllm-9-py3-none-any.whl: sha256 None"),
    ("I001", _link_lost, "index.html: vllm-0.33.0+spark.1-cp38-abi3-manylinux_2_28_aarch64.whl: not listed"),
    ("I001", _page_lost, "simple/vllm/index.json: missing"),
    ("I001", _no_json, "cannot be read"),
    ("I002", _sidecar_changed, "differs from METADATA in the wheel"),
    ("I002", _sidecar_lost, "not the METADATA that was recorded"),
    ("I003", _page_edited, "index.html: differs from what its facts give"),
    ("I003", _stray_page, "simple/vllm/old.html: not put there by the index"),
    ("I004", _only_python_4, "no Python of 3.12, 3.11, 3.13, 3.14 takes it"),
    ("I004", _plain_linux_tag, "linux_aarch64 promises no glibc"),
    ("I004", _page_gone, "pip refuses it"),
    ("I004", _page_gone, "uv refuses it"),
    ("I005", _wheel_lost, f"{VLLM}: missing"),
    ("I006", _wheel_altered, f"{VLLM}: altered: sha256 is"),
    ("I006", _wheel_cut, f"{VLLM}: altered: "),
]


def test_a_good_index_passes_every_rule(out: Path) -> None:
    report = verify(out)
    assert (report.problems, report.files, report.elsewhere) == ((), 2, ())


@pytest.mark.parametrize(("rule", "act", "message"), FAULTS)
def test_each_rule_names_its_fault(out: Path, rule: str, act: Callable[[Path], None], message: str) -> None:
    act(out)
    report = verify(out, with_clients=rule == "I004")
    found = [problem.what for problem in report.problems if problem.rule == rule]
    assert any(message in what for what in found), report.problems


def test_every_rule_has_a_fault_and_a_reason() -> None:
    assert {rule for rule, _act, _message in FAULTS} == {rule.id for rule in RULES}
    assert [rule.id for rule in RULES] == sorted(rule.id for rule in RULES)
    assert all(rule.__doc__ for rule in RULES)


def _forge(out: Path, change: Callable[[State], State]) -> None:
    """What a hand does that knows the format: facts, pages and sums changed together."""
    state = change(load(out))
    fresh = pages.render(state)
    fresh[SUMS_FILE] = pages.sums(state, fresh)
    for path, data in fresh.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(data)


def _drop_newest(state: State) -> State:
    keep = tuple(fact for fact in state.files if "spark.2" not in fact.version and fact.version != "0.33.0.2")
    return msgspec.structs.replace(state, files=keep)


def _other_python(state: State) -> State:
    files = tuple(msgspec.structs.replace(fact, requires_python=">=3.10") for fact in state.files)
    return msgspec.structs.replace(state, files=files)


def _unyank(state: State) -> State:
    return msgspec.structs.replace(
        state, files=tuple(msgspec.structs.replace(fact, yanked=None) for fact in state.files)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [(_drop_newest, "dropped"), (_other_python, "its facts were changed"), (_unyank, "its facts were changed")],
)
def test_an_older_copy_reveals_what_a_consistent_edit_hides(
    out: Path, tmp_path: Path, change: Callable[[State], State], message: str
) -> None:
    tree.build(out, wheels.release(tmp_path / "in", 2))
    releases.yank(out, "0.33.0.1", "broken")
    shutil.copytree(out, tmp_path / "published")
    _forge(out, change)
    if change is _drop_newest:
        for path in (out / "files").glob("*.2-*"):
            path.unlink()
    alone = verify(out, with_clients=False)
    assert {problem.rule for problem in alone.problems} <= {"I002"}
    report = verify(out, against=tmp_path / "published", with_clients=False)
    assert any(problem.rule == "I005" and message in problem.what for problem in report.problems)


def test_adding_and_yanking_are_no_loss(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out, tmp_path / "published")
    tree.build(out, wheels.release(tmp_path / "in", 2))
    releases.yank(out, "0.33.0.1", "broken")
    assert verify(out, against=tmp_path / "published", with_clients=False).problems == ()


def test_wheels_hosted_elsewhere_are_named_not_judged(tmp_path: Path) -> None:
    out = tmp_path / "index"
    tree.build(out, wheels.release(tmp_path / "in", 1), files_url="https://example.org/v1")
    for wheel in (out / "files").glob("*.whl"):
        wheel.unlink()
    report = verify(out)
    assert report.problems == ()
    assert len(report.elsewhere) == 2
    assert tree.build(out, wheels.release(tmp_path / "in", 2)).kept == 2


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_without_its_judges_the_rule_stops(out: Path, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    monkeypatch.setattr("sys.executable", str(out.parent / "bin" / "python"))
    monkeypatch.setenv("PATH", str(out.parent))
    if tool == "pip":
        monkeypatch.setattr("importlib.util.find_spec", {"pip": None}.get)
    with pytest.raises(ToolMissing, match=tool):
        verify(out)


def test_what_is_no_index(tmp_path: Path, out: Path) -> None:
    with pytest.raises(ArtefactError, match="no index"):
        verify(tmp_path / "nothing")
    with pytest.raises(ArtefactError, match="no index"):
        verify(out, against=tmp_path / "nothing")


@pytest.mark.parametrize(
    "line",
    [
        b"{}\n",
        b"not json\n",
        b'{"kind":"file"}\n',
        b'{"kind":"other"}\n',
        b'{"kind":"site","format":2}\n',
        b'{"kind":"site","format":1}\n{"kind":"site","format":1}\n',
        b'{"kind":"site","format":1,"surprise":1}\n',
        b'{"kind":"site","format":1} \n',
        b'{"kind":"site","format":1}\n{"kind":"project","name":"../up"}\n',
    ],
)
def test_a_malformed_state_is_one_clear_line(out: Path, line: bytes) -> None:
    (out / "index.jsonl").write_bytes(line)
    digest = hashlib.sha256(line).hexdigest()
    sums = (out / SUMS_FILE).read_text().splitlines()
    kept = [text for text in sums if not text.endswith("  index.jsonl")]
    (out / SUMS_FILE).write_text("\n".join([*kept, f"{digest}  index.jsonl"]) + "\n")
    with pytest.raises(ArtefactError) as caught:
        verify(out)
    assert "index.jsonl" in caught.value.where


def test_a_file_name_cannot_leave_the_folder(out: Path) -> None:
    state = load(out)
    evil = msgspec.structs.replace(state.files[0], filename="../../vllm-1-py3-none-any.whl")
    (out / "index.jsonl").write_bytes(dump(msgspec.structs.replace(state, files=(evil,))))
    with pytest.raises(ArtefactError, match="not a line of an index"):
        verify(out)
    (out / SUMS_FILE).write_text(f"{'0' * 64}  files/../../x\n")
    with pytest.raises(ArtefactError, match="malformed line"):
        verify(out)
