"""A rebase as people run it: to the end, with stops, with drops, undone; the checkout is never touched."""

import json
import sys
import tomllib

import pytest

from tests.fakes.upstream_repo import lines, message
from tests.integration.rebase.conftest import BASE, MODEL, Bed, Project
from vllm_spark.cli.main import main

LOADER = "vllm/loader.py"
LINEAR = "vllm/layers/linear.py"
SEVEN = lines(1, 60, l7="seven")
TEN = lines(101, 160, l110="ten")
FAST = ["--skip-native", "--skip-smoke", "--skip-wheel"]
UNGUARDED = ["--skip-guards", *FAST]


def guarded(name: str, test: str, needs: tuple[str, ...] = ()) -> str:
    return message(name, Spark_Guard=f"guards/guard_model.py::{test}", Spark_Needs=needs)


@pytest.fixture
def three(project: Project) -> Project:
    """Three patches, the last of which needs the first."""
    bed = project.bed
    bed.patch(guarded("model/a", "test_seven"), {MODEL: SEVEN})
    bed.patch(guarded("load/b", "test_ten"), {LOADER: TEN})
    bed.patch(guarded("model/c", "test_linear", ("model/a",)), {LINEAR: lines(201, 240, l220="LINEAR")})
    project.commit()
    return project


def start(*words: str) -> int:
    return main(["rebase", "run", "--onto", "0.34.0", *words])


def test_whole_way(three: Project, capsys: pytest.CaptureFixture[str]) -> None:
    three.next(
        {
            MODEL: SEVEN,
            LOADER: b"first\n" + BASE[LOADER],
            "requirements/cuda.txt": b"torch==2.15.0\nflashinfer-python==0.7.2\n",
        }
    )
    before = three.snapshot()
    assert start(*UNGUARDED) == 0
    assert (
        "0.33.0 → 0.34.0: 1 clean, 1 offset, 1 landed; not done: guards, native, smoke, wheel"
        in capsys.readouterr().out
    )
    after = three.snapshot()
    assert {key: after[key] for key in before if key != "refs" and ".git/" not in key} == {
        key: before[key] for key in before if key != "refs" and ".git/" not in key
    }
    assert three.git("log", "--format=%s", "main..rebase/v0.34.0").splitlines() == [
        "Rebase the series onto vllm 0.34.0",
        "Drop model/a: landed in vllm 0.34.0",
    ]
    dropping, carrying = "rebase/v0.34.0~1", "rebase/v0.34.0"
    names = three.git("diff", "--name-only", f"{dropping}~1", dropping).splitlines()
    assert names == ["patches/ledger.toml", "patches/model/a.patch", "patches/model/c.patch", "patches/series"]
    ledger = three.git("show", f"{carrying}:patches/ledger.toml")
    (entry,) = tomllib.loads(ledger)["dropped"]
    assert (entry["patch"], entry["base"], entry["why"].startswith("landed: the release has all")) == (
        "model/a",
        "0.34.0",
        True,
    )
    assert ledger.startswith("# Dropped.")
    assert "Spark-Needs" not in three.git("show", f"{carrying}:patches/model/c.patch")
    assert "@@ -8,7 +8,7 @@" in three.git("show", f"{carrying}:patches/load/b.patch")


def test_pins_follow_and_keep_their_comments(three: Project) -> None:
    three.next({"requirements/cuda.txt": b"torch==2.15.0\nflashinfer-python==0.7.2\n"})
    assert start(*UNGUARDED) == 0
    text = three.git("show", "rebase/v0.34.0:patches/upstream.toml")
    pins = tomllib.loads(text)
    assert pins["base"] == {"project": "vllm", "version": "0.34.0", "spark": 1}
    assert pins["requires"]["torch"] == "2.15.0"
    assert [file["name"] for file in pins["files"]] == list(three.index.files)
    for comment in ("# The base.", "# Counts.", "# exactly", "# The source."):
        assert comment in text
    project = three.git("show", "rebase/v0.34.0:pyproject.toml")
    assert 'version = "0.34.0.1"' in project
    assert '  # ours\n  "vllm==0.34.0+spark.1",\n  "x",\n' in project
    known = tomllib.loads(three.git("show", "rebase/v0.34.0:patches/known.toml"))
    assert known["files"][0]["name"] == "vllm-0.33.0.tar.gz"
    report = json.loads((three.out / "report.json").read_text())
    assert [(each["what"], each["old"], each["new"]) for each in report["findings"]] == [("torch", "2.14.0", "2.15.0")]


def test_stop_and_continue(three: Project, capsys: pytest.CaptureFixture[str]) -> None:
    three.next({MODEL: lines(1, 60, l7="7"), LOADER: b"first\n" + BASE[LOADER]})
    before = three.snapshot()
    assert start(*UNGUARDED) == 4
    told = capsys.readouterr()
    assert (
        "error: model/a.patch: conflict: vllm/model.py: both changed these lines (line 7). Next: settle it" in told.err
    )
    assert "1 offset, 1 conflict, 1 waiting; 2 open" in told.out
    assert three.snapshot() == before
    assert main(["rebase", "continue"]) == 5
    assert "conflict markers are left" in capsys.readouterr().err
    status = three.bed.upstream.git(three.tree, "status", "--porcelain").text
    assert status == "UU vllm/model.py\n"
    (three.tree / MODEL).write_bytes(lines(1, 60, l7="seven of 7"))
    assert main(["rebase", "continue"]) == 0
    report = json.loads((three.out / "report.json").read_text())
    assert [(each["verdict"], each["resolved"], bool(each["commit"])) for each in report["results"]] == [
        ("conflict", True, True),
        ("offset", False, True),
        ("clean", False, True),
    ]
    assert "+seven of 7" in three.git("show", "rebase/v0.34.0:patches/model/a.patch")
    assert "Spark-Needs: model/a" in three.git("show", "rebase/v0.34.0:patches/model/c.patch")
    assert "model/a" in report["range_diff"] or "change model/a" in report["range_diff"]
    assert (three.tree / LINEAR).read_bytes() == lines(201, 240, l220="LINEAR")


def test_stops_at_each_conflict_in_turn(three: Project) -> None:
    three.next({MODEL: lines(1, 60, l7="7"), LOADER: lines(101, 160, l110="10")})
    assert start(*UNGUARDED) == 4
    assert (three.tree / LOADER).read_bytes() == lines(101, 160, l110="10")
    (three.tree / MODEL).write_bytes(SEVEN)
    assert main(["rebase", "continue"]) == 4
    assert (three.tree / MODEL).read_bytes() == SEVEN
    (three.tree / LOADER).write_bytes(TEN)
    assert main(["rebase", "continue"]) == 0


def test_deleted_file_resolved_elsewhere(three: Project) -> None:
    three.next({MODEL: None, "vllm/other.py": b"quite different\n"})
    assert start(*UNGUARDED) == 4
    (three.tree / MODEL).unlink()
    (three.tree / "vllm" / "other.py").write_bytes(b"quite different\nseven\n")
    assert main(["rebase", "continue"]) == 0
    text = three.git("show", "rebase/v0.34.0:patches/model/a.patch")
    assert "+++ b/vllm/other.py" in text
    assert "vllm/model.py" not in text.partition("diff --git")[2]


def test_nothing_resolved(three: Project, capsys: pytest.CaptureFixture[str]) -> None:
    three.next({MODEL: lines(1, 60, l7="7")})
    assert start(*UNGUARDED) == 4
    (three.tree / MODEL).write_bytes(lines(1, 60, l7="7"))
    assert main(["rebase", "continue"]) == 5
    assert "nothing of the patch is left" in capsys.readouterr().err
    assert main(["rebase", "continue", "--drop", "model/a", "--why", "theirs will do"]) == 0
    subjects = three.git("log", "--format=%s", "main..rebase/v0.34.0").splitlines()
    assert subjects[-1] == "Drop model/a: conflict in vllm 0.34.0"
    (entry,) = tomllib.loads(three.git("show", "rebase/v0.34.0:patches/ledger.toml"))["dropped"]
    assert entry["why"] == "conflict: theirs will do"


def test_variant_needs_a_decision(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.bed.patch(message("model/a", Spark_Drop_When="version>=0.34.0"), {MODEL: SEVEN})
    project.commit()
    project.next({})
    assert start(*UNGUARDED) == 5
    assert "variant: version>=0.34.0 is reached, but the patch still changes something" in capsys.readouterr().err
    assert main(["rebase", "continue"]) == 0  # kept: the work tree holds the patch
    assert "rebase/v0.34.0" in project.git("branch", "--list", "rebase/*")


OBSOLETE = {
    "fits": lines(1, 60, l40="seven"),  # upstream has our word elsewhere in the file: nobody misses the patch
    "does not fit": lines(1, 5) + b"def helper(): return 'seven'\n" + lines(10, 60),  # a constant became a function
}


@pytest.mark.parametrize("how", OBSOLETE)
def test_obsolete_by_guard(project: Project, how: str) -> None:
    """Neither applied nor a conflict: the guard is green without it."""
    project.bed.patch(guarded("model/a", "test_seven"), {MODEL: SEVEN})
    project.commit()
    project.next({MODEL: OBSOLETE[how]})
    assert start(*FAST) == 0
    report = json.loads((project.out / "report.json").read_text())
    assert [each["verdict"] for each in report["results"]] == ["obsolete"]
    assert "guards are green on 0.34.0 without it" in report["results"][0]["dropped"]
    assert project.git("show", "rebase/v0.34.0:patches/series") == ""


def test_guard_holds_and_drops_nothing(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.bed.patch(guarded("model/a", "test_seven"), {MODEL: SEVEN})
    project.commit()
    project.next({LOADER: TEN})
    assert start(*FAST) == 0
    assert "1 guards: green with all patches, red without their own" in capsys.readouterr().out


def test_guard_red_after_applying(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """It fits, and does nothing any more: the guard says so, the branch is there, the run fails."""
    project.bed.patch(guarded("load/b", "test_ten"), {LOADER: TEN})
    project.commit()
    guard = project.root / "guards" / "guard_model.py"
    other = 'not (TREE / "vllm/loader2.py").exists()'
    guard.write_text(guard.read_text().replace('"ten" in (TREE / "vllm/loader.py").read_text()', other))
    project.git("commit", "-qam", "guard")
    project.next({"vllm/loader2.py": b"takes over\n"})
    assert start(*FAST) == 6
    err = capsys.readouterr().err
    assert "error: guards: check failed: guards/guard_model.py::test_ten: red with all" in err
    assert project.git("branch", "--list", "rebase/*")


def test_smoke_tells_ours_from_theirs(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SPARK_VLLM_PYTHON", sys.executable)
    project.bed.upstream.release("0.33.0", {**BASE, "vllm/good.py": b"x = 1\n", "vllm/bad.py": b"import nowhere\n"})
    project.bed.patch(
        message("model/a"), {"vllm/good.py": b"x = 1\nimport nowhere\n", "vllm/bad.py": b"import nowhere\n#\n"}
    )
    sdist = project.bed.root / "vllm-0.33.0.tar.gz"
    (project.bed.root / "cache" / "downloads" / sdist.name).write_bytes(sdist.read_bytes())
    project.commit()
    project.next({"vllm/good.py": b"x = 1\n", "vllm/bad.py": b"import nowhere\n", MODEL: b"y = 1\n"})
    assert start("--skip-guards", "--skip-native", "--skip-wheel") == 6
    steps = {step["name"]: step for step in json.loads((project.out / "report.json").read_text())["steps"]}
    assert steps["smoke"]["state"] == "failed"
    assert steps["smoke"]["detail"] == "vllm.good: ModuleNotFoundError: No module named 'nowhere'"


def test_lint_on_the_new_release(three: Project) -> None:
    """The budget in the ledger holds for the new series too."""
    path = three.root / "patches" / "ledger.toml"
    path.write_text(path.read_text().replace("patches = 300", "patches = 2"))
    three.git("commit", "-qam", "budget")
    three.next({})
    assert start(*UNGUARDED) == 6
    steps = {step["name"]: step for step in json.loads((three.out / "report.json").read_text())["steps"]}
    assert "P011 3 patches, the budget is 2" in steps["lint"]["detail"]
    assert steps["guards"]["detail"] == "chosen off (--skip-guards)"


@pytest.mark.parametrize("when", ["stopped", "finished"])
def test_abort_restores_everything(three: Project, when: str) -> None:
    three.next({MODEL: lines(1, 60, l7="7")} if when == "stopped" else {})
    before = three.snapshot()
    assert start(*UNGUARDED) == (4 if when == "stopped" else 0)
    assert main(["rebase", "abort"]) == 0
    assert three.snapshot() == before
    assert not three.out.exists()
    assert main(["rebase", "abort"]) == 2


def test_same_release_changes_nothing(three: Project, capsys: pytest.CaptureFixture[str]) -> None:
    before = three.snapshot()
    assert main(["rebase", "run", "--onto", "v0.33.0", *UNGUARDED]) == 3
    assert "the series is on 0.33.0, and nothing changes" in capsys.readouterr().err
    assert three.snapshot() == before
    assert not three.out.exists()


def test_forth_and_back_is_the_identity(three: Project) -> None:
    three.next({MODEL: lines(1, 60, l4="four"), LOADER: b"first\n" + BASE[LOADER], "csrc/x": b"x"})
    assert start(*UNGUARDED) == 0
    three.git("switch", "-q", "rebase/v0.34.0")
    assert main(["rebase", "run", "--onto", "0.33.0", "--allow-older", *UNGUARDED]) == 0
    assert three.git("diff", "--name-only", "main", "rebase/v0.33.0").splitlines() == [
        "patches/known.toml",
        "patches/upstream.toml",
        "pyproject.toml",
    ]


def test_tests_left_out_are_told(bed: Bed, project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    test = "tests/kernels/moe/test_moe.py"
    bed.upstream.release("0.33.0", {**BASE, test: lines(1, 30)})
    bed.patch(message("model/a"), {MODEL: SEVEN, test: lines(1, 30, l9="ours")})
    base = bed.root / "vllm-0.33.0.tar.gz"
    (bed.root / "cache" / "downloads" / base.name).write_bytes(base.read_bytes())
    project.commit()
    project.next({test: lines(1, 30, l9="theirs")})
    assert start(*UNGUARDED) == 0
    assert f"its change to {test} does not fit and is left out" in capsys.readouterr().out
    assert test not in project.git("show", "rebase/v0.34.0:patches/model/a.patch")


def test_report_forms(three: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    three.next({MODEL: lines(1, 60, l7="7")})
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert start(*UNGUARDED) == 4
    out = capsys.readouterr().out
    assert "::error file=patches/model/a.patch,title=model/a%3A conflict::" in out
    assert "::warning file=patches/model/c.patch,title=model/c%3A waiting::needs model/a" in out
    for form, start_ in (("md", "# Series on vLLM 0.34.0"), ("json", "{"), ("html", "<!doctype html>")):
        assert main(["rebase", "report", "--format", form]) == 0
        assert capsys.readouterr().out.startswith(start_)
    assert json.loads((three.out / "report.json").read_text())["results"][0]["next"].startswith("settle it in ")
