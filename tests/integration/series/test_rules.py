"""Each rule passes its `pass` fixture and breaks on its `fail` fixture, and there alone; the docs list them all."""

from pathlib import Path

import pytest

from tests.fakes.upstream_repo import Upstream, lines, message
from vllm_spark.distro.series import rules
from vllm_spark.distro.series.store import survey

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "series"


def broken(folder: Path, upstream: Upstream) -> list[rules.Violation]:
    return list(rules.check(rules.Context(survey(folder), DATA, upstream.mirror, "0.33.0")))


@pytest.mark.parametrize("rule", [rule.id for rule in rules.RULES])
def test_fixtures(rule: str, upstream: Upstream) -> None:
    assert broken(DATA / "rules" / rule / "pass", upstream) == []
    found = broken(DATA / "rules" / rule / "fail", upstream)
    assert {violation.rule for violation in found} == {rule}
    assert all(violation.where and violation.what and "\n" not in str(violation) for violation in found)


@pytest.mark.parametrize(
    ("rule", "edits", "text", "what"),
    [
        ("P003", {"csrc/kernel.cu": b"x\n"}, message("model/a"), "python, but it changes csrc/kernel.cu"),
        ("P003", {"docs/a.md": b"x\n"}, message("model/a"), "changes nothing under vllm/"),
        (
            "P003",
            {"vllm/a.py": b"x\n"},
            message("model/a", Spark_Class="native"),
            "nothing that it changes is",
        ),
        ("P003", {"vllm/a.py": b"x\n"}, message("model/b"), "Spark-Patch says model/b, the path says model/a"),
        ("P004", {"vllm/a.py": b"x\n"}, message("model/a").replace("model: ", "", 1), "not of the form 'area:"),
        ("P004", {"vllm/a.py": b"x\n"}, message("model/a").replace(" nothing here would change, and", ""), ""),
        ("P005", {"vllm/a.py": b"x\n"}, message("model/a", Spark_Guard="guards/none.py::test_a"), "no such file"),
        ("P008", {"vllm.egg-info/PKG-INFO": b"x\n"}, message("model/a"), "vllm.egg-info/PKG-INFO"),
        ("P009", {"vllm/a.py": b"x\r\n"}, message("model/a"), "carriage returns"),
        ("P009", {"vllm/a.bin": b"\0\1"}, message("model/a"), "binary file vllm/a.bin"),
        ("P009", {"vllm/a.py": b"x\t\n"}, message("model/a"), "trailing blanks"),
        ("P010", {"vllm/a.py": b"x\n"}, message("model/a", Spark_Needs="model/a"), "needs itself"),
        ("P010", {"vllm/a.py": b"x\n"}, message("model/a", Spark_Needs="model/z"), "which the series does not have"),
        ("P011", {"vllm/a.py": lines(1, 11)}, message("model/a"), "11 lines added or removed, the budget is 10"),
    ],
)
def test_every_way_to_break_one(
    upstream: Upstream, tmp_path: Path, rule: str, edits: dict[str, bytes | None], text: str, what: str
) -> None:
    folder = tmp_path / "patches"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "a.patch").write_bytes(upstream.patch(text, edits))
    (folder / "series").write_text("model/a.patch\n")
    (folder / "ledger.toml").write_bytes((DATA / "rules/P001/pass/ledger.toml").read_bytes())
    found = broken(folder, upstream)
    if what:
        assert [violation.rule for violation in found if what in violation.what] == [rule]
    else:
        assert found == []


def test_need_that_stands_later(upstream: Upstream, tmp_path: Path) -> None:
    folder = tmp_path / "patches"
    (folder / "model").mkdir(parents=True)
    for name, need in (("a", "model/b"), ("b", ())):
        data = upstream.patch(message(f"model/{name}", Spark_Needs=need), {f"vllm/{name}.py": b"x\n"})
        (folder / "model" / f"{name}.patch").write_bytes(data)
    (folder / "series").write_text("model/a.patch\nmodel/b.patch\n")
    (folder / "ledger.toml").write_bytes((DATA / "rules/P001/pass/ledger.toml").read_bytes())
    assert [str(item) for item in broken(folder, upstream)] == [
        "model/a.patch: P010 needs model/b, which stands later in series"
    ]


def test_malformed_patch_is_a_violation_not_a_crash(upstream: Upstream, tmp_path: Path) -> None:
    folder = tmp_path / "patches"
    (folder / "model").mkdir(parents=True)
    data = (DATA / "rules/P001/pass/model/a.patch").read_bytes()
    (folder / "model" / "a.patch").write_bytes(data.replace(b"@@ -4,7 +4,7 @@", b"@@ -4,7 @@"))
    (folder / "series").write_text("model/a.patch\n")
    (folder / "ledger.toml").write_bytes((DATA / "rules/P001/pass/ledger.toml").read_bytes())
    (found,) = broken(folder, upstream)
    assert found.rule == "P007"
    assert found.where == "model/a.patch:27"
    assert "malformed hunk header '@@ -4,7 @@ line 3'" in found.what


def test_ids_are_in_order_and_documented() -> None:
    assert [rule.id for rule in rules.RULES] == [f"P{number:03}" for number in range(1, 12)]
    for rule in rules.RULES:
        assert len(rule.explain().split()) > 20


def test_docs_hold_the_table() -> None:
    text = (ROOT / "docs" / "series.md").read_text()
    begin, end = "<!-- rules: generated from vllm_spark/distro/series/rules -->\n", "<!-- end of rules -->"
    assert text.split(begin)[1].split(end)[0] == rules.table()
