"""docs/rebase.md says what the code and the kept verdicts say."""

import tomllib
from pathlib import Path

from vllm_spark import paths
from vllm_spark.distro.rebase.steps import STEPS
from vllm_spark.distro.rebase.verdict import VERDICTS

ROOT = paths.repo_root()
DOC = (ROOT / "docs" / "rebase.md").read_text()


def table() -> str:
    data = tomllib.loads((ROOT / "tests" / "data" / "rebase" / "verdicts.toml").read_text())
    names = list(dict.fromkeys(name for verdicts in data.values() for name in verdicts))
    head = [f"| patch | {' | '.join(data)} |", f"|{'---|' * (len(data) + 1)}"]
    rows = [f"| {name} | {' | '.join(verdicts.get(name, '') for verdicts in data.values())} |" for name in names]
    return "\n".join([*head, *rows]) + "\n"


def test_the_table_of_verdicts() -> None:
    marked = DOC.partition("verdicts.toml -->\n")[2].partition("<!-- end of verdicts -->")[0]
    assert marked == table(), f"write this between the marks:\n{table()}"


def test_every_verdict_has_its_evidence() -> None:
    data = tomllib.loads((ROOT / "tests" / "data" / "rebase" / "verdicts.toml").read_text())
    rows = DOC.partition("| patch | release | evidence |\n|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    cells = [row.strip("| ").split(" | ") for row in rows]
    shown = [(release, patch) for patch, releases, _ in cells for release in releases.split(", ")]
    assert sorted(shown) == sorted((release, patch) for release, verdicts in data.items() for patch in verdicts)


def test_every_verdict_is_explained() -> None:
    assert [verdict for verdict in VERDICTS if f"\n| {verdict} | " not in DOC] == []


def test_every_check_is_explained() -> None:
    for name in STEPS:
        assert f"| {name} | " in DOC
        assert f"`--skip-{name}`" in DOC


def test_kept_verdicts_are_verdicts() -> None:
    path = Path("tests/data/rebase/verdicts.toml")
    data = tomllib.loads((ROOT / path).read_text())
    assert {verdict for verdicts in data.values() for verdict in verdicts.values()} <= set(VERDICTS)
