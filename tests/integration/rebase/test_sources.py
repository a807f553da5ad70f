"""Other sources than the index: a file, a folder, a clone; and what only a clone's history can tell."""

import json
from pathlib import Path

import pytest

from tests.fakes.upstream_repo import lines, message
from tests.integration.rebase.conftest import BASE, MODEL, Bed, Project
from vllm_spark.cli.main import main

SEVEN = lines(1, 60, l7="seven")
SHA = "{sha}"


class Clone:
    """A clone of upstream with a tag for each release, made commit by commit."""

    def __init__(self, root: Path, bed: Bed) -> None:
        self.path = root
        self.bed = bed
        root.mkdir()
        self.git("init", "-q", "-b", "main")
        self.commit("start", dict(BASE))
        self.git("tag", "v0.33.0")

    def git(self, *words: str) -> str:
        return self.bed.upstream.git(self.path, *words).text.strip()

    def commit(self, subject: str, files: dict[str, bytes | None]) -> str:
        for name, data in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if data is None:
                path.unlink()
            else:
                path.write_bytes(data)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def clone(bed: Bed) -> Clone:
    return Clone(bed.root / "clone", bed)


def verdict(project: Project, *words: str) -> dict[str, object]:
    """The one patch's entry in the report of a plan."""
    out = project.bed.root / "report"
    main(["rebase", "plan", "--onto", "0.34.0", "--report", str(out), *words])
    (result,) = json.loads((out / "report.json").read_text())["results"]
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("kind", ["file", "folder", "clone", "bare clone"])
def test_each_source(project: Project, clone: Clone, kind: str) -> None:
    project.bed.patch(message("model/a"), {MODEL: SEVEN})
    project.commit()
    new = b"first\n" + lines(1, 60)
    clone.commit("new line", {MODEL: new})
    clone.git("tag", "v0.34.0")
    bare = project.bed.root / "bare.git"
    clone.git("clone", "-q", "--bare", str(clone.path), str(bare))
    folder = project.bed.root / "folder"
    (folder / "vllm").mkdir(parents=True)
    (folder / MODEL).write_bytes(new)
    (folder / ".gitignore").write_text("vllm/\n")
    file = project.next({MODEL: new})
    project.index.files.clear()
    where = {"file": file, "folder": folder, "clone": clone.path, "bare clone": bare}[kind]
    result = verdict(project, "--source", str(where))
    assert (result["verdict"], result["files"]) == ("offset", [MODEL])


def test_clone_without_the_tag(project: Project, clone: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    project.bed.patch(message("model/a"), {MODEL: SEVEN})
    project.commit()
    assert main(["rebase", "plan", "--onto", "0.34.0", "--source", str(clone.path)]) == 2
    assert "no tag v0.34.0. Next: git -C" in capsys.readouterr().err
    project.next({})
    assert main(["rebase", "plan", "--onto", "0.34.0", "--history", str(clone.path)]) == 0
    assert "has no tag v0.34.0: commits and pull requests were not looked at" in capsys.readouterr().err


def test_run_from_a_clone(project: Project, clone: Clone) -> None:
    project.bed.patch(message("model/a"), {MODEL: SEVEN})
    project.commit()
    clone.commit("new line", {MODEL: b"first\n" + lines(1, 60)})
    clone.git("tag", "v0.34.0")
    project.next({MODEL: b"first\n" + lines(1, 60)})
    skip = ["--skip-guards", "--skip-native", "--skip-smoke", "--skip-wheel"]
    assert main(["rebase", "run", "--onto", "0.34.0", "--source", str(clone.path), *skip]) == 0
    assert "vllm-0.34.0.tar.gz" in project.git("show", "rebase/v0.34.0:patches/upstream.toml")


def test_history_names_the_commit_that_landed_it(project: Project, clone: Clone) -> None:
    project.bed.patch(message("model/a"), {MODEL: SEVEN})
    project.commit()
    commit = clone.commit("Say seven (#4711)", {MODEL: SEVEN})
    clone.git("tag", "v0.34.0")
    project.next({MODEL: SEVEN})
    result = verdict(project, "--history", str(clone.path))
    assert result["verdict"] == "landed"
    assert result["candidates"] == [f"the same change is {commit[:12]} Say seven (#4711)"]


SIGNS = {
    "pull request in Drop-When": ({"Spark_Drop_When": "pr:4711"}, "pull request 4711 is "),
    "pull request in Upstream": (
        {"Spark_Upstream": "proposed https://example.org/x/pull/4711"},
        "pull request 4711 is ",
    ),
    "commit in Drop-When": ({"Spark_Drop_When": f"commit:{SHA}"}, "commit "),
    "commit in Origin": ({"Spark_Origin": f"https://example.org/x@{SHA}, adapted"}, "commit "),
    "cherry-picked commit": ({"Spark_Drop_When": "commit:" + "abc0123456"}, "commit "),
}


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("clashes", [False, True])
def test_history_makes_a_variant(project: Project, clone: Clone, sign: str, clashes: bool) -> None:
    """The change is upstream in another form: told, whether ours still applies or not."""
    text = lines(1, 60, l7="7") if clashes else lines(1, 60, l50="seven")
    commit = clone.commit("Say it otherwise (#4711)\n\n(cherry picked from commit abc0123456789)", {MODEL: text})
    clone.git("tag", "v0.34.0")
    trailers, word = SIGNS[sign]
    project.bed.patch(
        message("model/a", **{key: (value.replace(SHA, commit[:10]),) for key, value in trailers.items()}),
        {MODEL: SEVEN},
    )
    project.commit()
    project.next({MODEL: text})
    result = verdict(project, "--history", str(clone.path))
    assert result["verdict"] == "variant"
    candidates = result["candidates"]
    assert isinstance(candidates, list)
    assert candidates[0].startswith(word)
    assert commit[:12] in candidates[0]
    assert bool(result["clashes"]) == clashes
    # without history the same degrades, and says so
    assert verdict(project)["verdict"] == ("conflict" if clashes else "clean")


def test_history_names_the_cause_of_a_conflict(project: Project, clone: Clone) -> None:
    project.bed.patch(message("model/a"), {MODEL: SEVEN, "vllm/loader.py": lines(101, 160, l110="ten")})
    project.commit()
    clone.commit("Elsewhere (#1)", {MODEL: lines(1, 60, l50="fifty")})
    cause = clone.commit("Number seven (#2)", {MODEL: lines(1, 60, l7="7", l50="fifty")})
    gone = clone.commit("Drop the loader (#3)", {"vllm/loader.py": None})
    clone.git("tag", "v0.34.0")
    project.next({MODEL: lines(1, 60, l7="7", l50="fifty"), "vllm/loader.py": None})
    result = verdict(project, "--history", str(clone.path))
    clashes = result["clashes"]
    assert isinstance(clashes, list)
    assert {clash["file"]: clash["cause"] for clash in clashes} == {
        MODEL: [f"{cause[:12]} Number seven (#2)"],
        "vllm/loader.py": [f"{gone[:12]} Drop the loader (#3)"],
    }
