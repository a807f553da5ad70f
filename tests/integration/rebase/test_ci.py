"""What hosted CI does: sound workflows, every step of which runs, and a script that leaves branch, report and issue."""

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from ci import new_tag
from tests.fakes.upstream_repo import lines, message
from tests.integration.rebase.conftest import MODEL, Project
from vllm_spark import proc

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SKIP = ["--skip-guards", "--skip-native", "--skip-smoke", "--skip-wheel"]


def steps(path: Path) -> list[dict[str, Any]]:
    document = yaml.safe_load(path.read_text())
    return [step for job in document["jobs"].values() for step in job["steps"]]


def runs() -> dict[str, str]:
    """Every shell text of every workflow, by file and step."""
    return {f"{path.name}: {step['name']}": step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step}


@dataclass
class Sandbox:
    """A folder in which every program that a step calls only notes that it was called."""

    folder: Path

    def __post_init__(self) -> None:
        self.log = self.folder / "log"
        for name in ("make", "sudo", "gh", "git", ".venv/bin/python", ".venv/bin/vllm-spark"):
            self.program(name)

    def program(self, name: str, status: int = 0, says: str = "") -> None:
        path = self.folder / (name if "/" in name else f"bin/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        # It reads its input like the real one: a pipe into a program that does not may end either way.
        lines = ["#!/bin/sh", f'echo "{name} $*" >>{self.log}', "cat >/dev/null", f'echo "{says}"', f"exit {status}"]
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o755)

    def run(self, text: str, **env: str) -> tuple[int, list[str]]:
        """Run a step as the runner does; its status, and the calls."""
        self.log.write_text("")
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        argv = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", text]
        done = proc.run(argv, cwd=self.folder, env={"PATH": path, **env}, check=False)
        return done.status, [line.rstrip() for line in self.log.read_text().splitlines()]


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def test_workflows_pass_actionlint() -> None:
    tool = Path(sysconfig.get_path("scripts")) / "actionlint"
    assert tool.exists(), "make .venv/.done installs actionlint"
    assert [path.name for path in WORKFLOWS] == ["new-tag.yml", "release.yml", "tests.yml"]
    done = proc.run([tool, *WORKFLOWS], check=False)
    assert done.status == 0, done.output


def test_actionlint_would_see_a_mistake(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text().replace("steps.rebase.outputs", "stepz.rebase.outputs"))
    done = proc.run([Path(sysconfig.get_path("scripts")) / "actionlint", broken], check=False)
    assert done.status == 1
    assert 'undefined variable "stepz"' in done.output


EXPECTED = {
    "new-tag.yml: Prepare": ["make .venv/.torch .venv-vllm/.done"],
    "new-tag.yml: Carry the series": [".venv/bin/python ci/new_tag.py --pre"],
    "new-tag.yml: Push the branch": ["git push origin refs/heads/rebase/v1:refs/heads/rebase/v1"],
    "new-tag.yml: Open an issue": [
        'gh issue list --repo o/r --search in:title "vLLM 1: x" --json number --jq .[].number',
        "gh issue create --repo o/r --title vLLM 1: x --body-file -",
    ],
    "release.yml: Install the cross compiler": [
        "sudo apt-get update -qq",
        "sudo apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu",
    ],
    "release.yml: Build both wheels and the index": ["make release"],
    "release.yml: Check the index": [".venv/bin/vllm-spark index verify dist/index"],
    "tests.yml: Run every test": ["sudo --preserve-env=PATH,HOME .ci/run"],
}


def test_every_step_has_its_dry_run() -> None:
    assert set(EXPECTED) == set(runs())


@pytest.mark.parametrize("step", EXPECTED)
def test_dry_run(sandbox: Sandbox, step: str) -> None:
    (sandbox.folder / "issue.md").write_text("vLLM 1: x\n\nbody\n")
    env = {"PRE": "--pre", "BRANCH": "rebase/v1", "ISSUE": "issue.md", "REPO": "o/r"}
    status, calls = sandbox.run(runs()[step], **env)
    assert (status, calls) == (0, EXPECTED[step])


@pytest.mark.parametrize(("status", "ends"), [(0, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (1, 1), (9, 9), (10, 10)])
def test_what_the_series_step_lets_pass(sandbox: Sandbox, status: int, ends: int) -> None:
    sandbox.program(".venv/bin/python", status)
    assert sandbox.run(runs()["new-tag.yml: Carry the series"], PRE="") == (ends, [".venv/bin/python ci/new_tag.py"])


def test_an_issue_is_opened_once(sandbox: Sandbox) -> None:
    (sandbox.folder / "issue.md").write_text("vLLM 1: x\n\nbody\n")
    sandbox.program("gh", says="42")
    _, calls = sandbox.run(runs()["new-tag.yml: Open an issue"], ISSUE="issue.md", REPO="o/r")
    assert len(calls) == 1


def test_make_knows_its_targets() -> None:
    for target in ("release", ".venv/.torch", ".venv-vllm/.done"):
        assert proc.run(["make", "--dry-run", "--always-make", target], cwd=ROOT, check=False).status == 0


@pytest.mark.parametrize("clashes", [False, True])
def test_new_tag(project: Project, monkeypatch: pytest.MonkeyPatch, clashes: bool) -> None:
    """The newest final release counts; branch, report and issue are there, or the issue says why no branch is."""
    project.bed.patch(message("model/a"), {MODEL: lines(1, 60, l7="seven")})
    project.commit()
    project.next({}, version="0.33.1")
    project.next({MODEL: lines(1, 60, l7="7")} if clashes else {})
    project.next({}, version="0.35.0rc1")
    outputs = project.bed.root / "outputs"
    monkeypatch.setenv("GITHUB_OUTPUT", str(outputs))
    assert new_tag.main(SKIP) == (4 if clashes else 0)
    told = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
    assert told["version"] == "0.34.0"
    assert told["branch"] == ("" if clashes else "rebase/v0.34.0")
    issue = Path(told["issue"]).read_text()
    title = "vLLM 0.34.0: " + ("1 patch needs a person" if clashes else "the series is carried")
    assert issue.splitlines()[0] == title
    assert "| `model/a` | **" in issue
    assert bool(project.git("branch", "--list", "rebase/v0.34.0")) != clashes
    assert (project.out / "report.html").exists()


def test_new_tag_with_candidates(project: Project) -> None:
    project.commit()
    project.next({}, version="0.34.0rc1")
    assert new_tag.main(["--pre", *SKIP]) == 0
    assert project.git("branch", "--list", "rebase/v0.34.0rc1")


def test_no_newer_release(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.commit()
    project.next({}, version="0.32.0")
    project.next({}, version="0.34.0rc1")
    assert new_tag.main(SKIP) == 3
    assert "no release newer than 0.33.0" in capsys.readouterr().err
