"""Whatever is wrong: one line that says what, where and what next, its exit code, and a checkout as before."""

import contextlib
import gzip
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.upstream_repo import lines, message
from tests.integration.rebase.conftest import MODEL, Project
from vllm_spark import paths
from vllm_spark.cli.main import main
from vllm_spark.distro.upstream import git

SKIP = ["--skip-guards", "--skip-native", "--skip-smoke", "--skip-wheel"]


@pytest.fixture
def one(project: Project) -> Project:
    """One patch that fits the next release, and one that conflicts with the one after."""
    project.bed.patch(message("model/a"), {MODEL: lines(1, 60, l7="seven")})
    project.commit()
    project.next({})
    project.next({MODEL: lines(1, 60, l7="7")}, version="0.35.0")
    return project


def unsafe(project: Project, member: tarfile.TarInfo) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        archive.addfile(member, io.BytesIO(b"x" * member.size))
    project.index.files["vllm-0.34.0.tar.gz"] = stream.getvalue()


def symlink() -> tarfile.TarInfo:
    member = tarfile.TarInfo("vllm-0.34.0/vllm/evil")
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return member


def outside() -> tarfile.TarInfo:
    member = tarfile.TarInfo("vllm-0.34.0/../../evil")
    member.size = 1
    return member


def edit(path: str, old: str, new: str) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        file = project.root / path
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new, 1))
        project.git("commit", "-qam", "edited")

    return change


def dirty(project: Project) -> None:
    (project.root / "patches" / "series").write_text("# mine\nmodel/a.patch\n")


def pinned_otherwise(project: Project) -> None:
    """The index has other bytes than a pin in git says."""
    text = '[[files]]\nrole = "sdist"\nname = "vllm-0.34.0.tar.gz"\nsha256 = "' + "b" * 64 + '"\nsize = 10\n'
    (project.root / "patches" / "known.toml").write_text(text)
    project.git("add", "-A")
    project.git("commit", "-qm", "known")


def branch(project: Project) -> None:
    project.git("branch", "rebase/v0.34.0")


def altered(project: Project) -> None:
    """The index serves other bytes than it announces."""
    project.index.announced["vllm-0.34.0.tar.gz"] = "c" * 64


# what is wrong -> (what is done, the version asked for, more words, exit code, a part of the line)
BAD: dict[str, tuple[Callable[[Project], None] | None, str, list[str], int, str]] = {
    "unknown version": (None, "0.99.0", [], 2, "0.99.0: the index has no sdist of vllm 0.99.0; the newest are 0.34.0"),
    "no version": (None, "newest", [], 2, "newest: not a version"),
    "downgrade": (None, "0.20.2", [], 2, "0.20.2: older than the base 0.33.0. Next: add --allow-older"),
    "dirty": (dirty, "0.34.0", [], 2, "holds work that is not committed (1 files, first patches/series)"),
    "hash in git": (pinned_otherwise, "0.34.0", [], 9, "the pin says bbbb"),
    "hash on the index": (altered, "0.34.0", [], 9, "SHA-256"),
    "link that leads out": (lambda p: unsafe(p, symlink()), "0.34.0", [], 7, "member 'vllm-0.34.0/vllm/evil' refused"),
    "path that leads out": (lambda p: unsafe(p, outside()), "0.34.0", [], 7, "refused"),
    "no tar": (
        lambda p: p.index.files.update({"vllm-0.34.0.tar.gz": gzip.compress(b"no tar")}),
        "0.34.0",
        [],
        7,
        "no readable tar archive",
    ),
    "no trailers": (
        edit("patches/model/a.patch", "Spark-Kind: fix\n", ""),
        "0.34.0",
        [],
        4,
        "model/a.patch: missing trailer Spark-Kind",
    ),
    "malformed hunk": (
        edit("patches/model/a.patch", "@@ -4,7 +4,7 @@", "@@ -4,7 +4,x @@"),
        "0.34.0",
        [],
        4,
        "model/a.patch: malformed hunk header '@@ -4,7 +4,x @@",
    ),
    "no source": (None, "0.34.0", ["--source", "/nowhere"], 2, "/nowhere: no such file or folder"),
    "no clone": (None, "0.34.0", ["--history", "/proc"], 2, "/proc: no git repository"),
    "malformed pins": (edit("patches/upstream.toml", "spark = 3", 'spark = "3"'), "0.34.0", [], 2, "$.base.spark"),
    "branch exists": (
        branch,
        "0.34.0",
        [],
        2,
        "rebase/v0.34.0: there is a branch of this name already",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(one: Project, capsys: pytest.CaptureFixture[str], case: str) -> None:
    action, version, words, code, line = BAD[case]
    if action is not None:
        action(one)
    before = one.snapshot()
    assert main(["rebase", "run", "--onto", version, *words, *SKIP]) == code
    told = capsys.readouterr().err
    errors = [row for row in told.splitlines() if row.startswith("error: ")]
    assert len(errors) == 1
    assert line in errors[0]
    assert "Next: " in told
    assert one.snapshot() == before
    assert not one.tree.exists()
    assert main(["rebase", "continue"]) == 2
    plan = ["rebase", "plan", "--onto", version, *words]
    assert main(plan) == (0 if case in ("dirty", "branch exists") else code)
    assert one.snapshot() == before


def test_unsafe_tar_leaves_nothing_outside(one: Project) -> None:
    unsafe(one, outside())
    assert main(["rebase", "plan", "--onto", "0.34.0"]) == 7
    assert not list(one.bed.root.rglob("evil"))


def test_concurrent_run(one: Project, capsys: pytest.CaptureFixture[str]) -> None:
    before = one.snapshot()
    with paths.lock(one.out.parent / ".rebase.lock"):
        for words in (["run", "--onto", "0.34.0"], ["continue"], ["abort"]):
            assert main(["rebase", *words]) == 10
            assert "another run holds the lock" in capsys.readouterr().err
    assert one.snapshot() == before


def test_second_run_while_one_waits(one: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rebase", "run", "--onto", "0.35.0", *SKIP]) == 4
    assert main(["rebase", "run", "--onto", "0.34.0", *SKIP]) == 2
    assert "a rebase onto 0.35.0 is under way. Next: vllm-spark rebase continue" in capsys.readouterr().err


def test_series_changed_meanwhile(one: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rebase", "run", "--onto", "0.35.0", *SKIP]) == 4
    dirty(one)
    assert main(["rebase", "continue"]) == 2
    assert "the series changed since the rebase began" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["{", '{"form": 9, "base": "a", "onto": "b", "head": "c", "series": "d", "branch": "e"}']
)
def test_damaged_state(one: Project, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert main(["rebase", "run", "--onto", "0.35.0", *SKIP]) == 4
    (one.out / "state.json").write_text(text)
    assert main(["rebase", "continue"]) == 2
    assert "state.json" in capsys.readouterr().err


def test_continue_with_a_wrong_word(one: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rebase", "run", "--onto", "0.35.0", *SKIP]) == 4
    assert main(["rebase", "continue", "--drop", "model/x", "--why", "y"]) == 2
    assert main(["rebase", "continue", "--drop", "model/a"]) == 2
    assert "--drop and --why go together" in capsys.readouterr().err
    assert main(["rebase", "abort"]) == 0


def test_folder_of_somebody_else(one: Project, capsys: pytest.CaptureFixture[str]) -> None:
    mine = one.bed.root / "mine"
    mine.mkdir()
    (mine / "thesis").write_text("mine")
    assert main(["rebase", "run", "--onto", "0.34.0", "--work", str(mine), *SKIP]) == 2
    assert "exists, and is no rebase's folder" in capsys.readouterr().err
    assert (mine / "thesis").read_text() == "mine"


def test_no_clone_no_run(one: Project, capsys: pytest.CaptureFixture[str]) -> None:
    (one.root / ".git").rename(one.bed.root / "elsewhere")
    assert main(["rebase", "run", "--onto", "0.34.0", *SKIP]) == 2
    assert "no git clone: there is nothing to make a branch in" in capsys.readouterr().err
    assert main(["rebase", "plan", "--onto", "0.34.0"]) == 0


def test_linked_work_tree(one: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """`git worktree add` leaves a file where .git is expected to be a folder."""
    linked = one.bed.root / "linked"
    one.git("worktree", "add", "-q", str(linked))
    monkeypatch.setenv("VLLM_SPARK_ROOT", str(linked))
    assert main(["rebase", "run", "--onto", "0.34.0", *SKIP]) == 0
    assert one.git("branch", "--list", "rebase/v0.34.0")


@pytest.mark.parametrize(
    ("text", "line"), [("", "git: not installed"), ("git version 2.38.4", "too old: 'git version")]
)
def test_no_git_or_an_old_one(
    one: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    folder = one.bed.root / "bin"
    folder.mkdir()
    if text:
        (folder / "git").write_text(f"#!/bin/sh\necho {text}\n")
        (folder / "git").chmod(0o755)
    before = one.snapshot()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(folder))
        assert main(["rebase", "run", "--onto", "0.34.0", *SKIP]) == 8
        assert main(["rebase", "plan", "--onto", "0.34.0"]) == 8
    assert line in capsys.readouterr().err
    assert one.snapshot() == before
    assert not one.out.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("moment", ["merge-tree", "read-tree --reset", "update-ref refs/heads/rebase"])
def test_interrupted_run_goes_on(one: Project, number: int, moment: str) -> None:
    """git is held up at three moments; the stop arrives; `continue` goes through, and so does `abort`."""
    folder, reached = one.bed.root / "bin", one.bed.root / "reached"
    folder.mkdir()
    real = git.require()
    hold = f'case "$*" in *"{moment}"*) touch {reached}; exec sleep 60;; esac'
    (folder / "git").write_text(f'#!/bin/sh\n{hold}\nexec {real} "$@"\n')
    (folder / "git").chmod(0o755)
    before = one.snapshot()
    argv = [sys.executable, "-m", "vllm_spark", "rebase", "run", "--onto", "0.34.0", *SKIP]
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not reached.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, number)
        process.wait(timeout=60)
        with contextlib.suppress(ProcessLookupError):  # the git that a killed run leaves behind
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == (130 if number == signal.SIGTERM else -number)
    assert one.snapshot() == before
    assert main(["rebase", "continue"]) == 0
    assert one.git("branch", "--list", "rebase/v0.34.0")
    assert main(["rebase", "abort"]) == 0
    assert one.snapshot() == before


def test_first_use_is_remembered(one: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """Once seen, other bytes under the same name are refused, although no pin in git says so."""
    assert main(["rebase", "plan", "--onto", "0.34.0"]) == 0
    assert "pinned by this first use to SHA-256" in capsys.readouterr().err
    cache = Path(os.environ["VLLM_SPARK_CACHE"])
    (cache / "downloads" / "vllm-0.34.0.tar.gz").unlink()
    for path in (cache / "mirror").rglob("*"):
        if path.is_file() and path.name.startswith("v0.34.0"):
            path.unlink()
    packed = cache / "mirror" / "vllm.git" / "packed-refs"
    assert not packed.exists()
    one.next({"vllm/other.py": b"x\n"})
    assert main(["rebase", "plan", "--onto", "0.34.0"]) == 9


def test_release_without_its_requirements_is_told(one: Project, capsys: pytest.CaptureFixture[str]) -> None:
    one.next({"requirements/cuda.txt": b"torch>=2.14\n"})
    assert main(["rebase", "run", "--onto", "0.34.0", *SKIP]) == 6
    told = capsys.readouterr()
    assert "not readable: requirements/cuda.txt: the new release lacks an exact pin of torch" in told.out
    assert "error: pins: check failed" in told.err


def test_index_that_does_not_answer(one: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the sdist at hand the series is carried; that the wheels are not pinned is told."""
    source = one.bed.root / "vllm-0.34.0.tar.gz"
    monkeypatch.setenv("VLLM_SPARK_INDEX_URL", "http://127.0.0.1:9/simple/")
    assert main(["rebase", "plan", "--onto", "0.34.0"]) == 10
    assert main(["rebase", "run", "--onto", "0.34.0", "--source", str(source), *SKIP]) == 0
    text = one.git("show", "rebase/v0.34.0:patches/upstream.toml")
    assert text.count("[[files]]") == 1
    assert "not known: the index does not answer" in (one.out / "report.md").read_text()


def test_base_stays_what_it_was(one: Project) -> None:
    """Bytes of the base's own sdist are checked as well."""
    base = one.bed.root / "cache" / "downloads" / "vllm-0.33.0.tar.gz"
    one.index.files["vllm-0.33.0.tar.gz"] = b"other"
    base.write_bytes(b"other")
    assert main(["rebase", "plan", "--onto", "0.34.0"]) == 9
