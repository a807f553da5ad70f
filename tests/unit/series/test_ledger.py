"""The ledger: read strictly, and wrong entries named."""

from pathlib import Path

import pytest

from vllm_spark.distro.series import ledger
from vllm_spark.distro.series.store import load
from vllm_spark.errors import ConfigError

ROOT = Path(__file__).parents[3]
BUDGET = '[[budget]]\ndate = 2026-11-28\npatches = 1\nlines = 2\nwhy = "a"\n'
DROPPED = '[[dropped]]\npatch = "a/b"\ndate = 2026-11-28\nbase = "0.34.0"\nwhy = "landed"\n'


def test_whole(tmp_path: Path) -> None:
    (tmp_path / "ledger.toml").write_text(BUDGET + BUDGET.replace("lines = 2", "lines = 3") + DROPPED)
    found = ledger.load(tmp_path / "ledger.toml")
    assert found.budget[-1].lines == 3
    assert [item.patch for item in found.dropped] == ["a/b"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "budget"),
        (DROPPED, "budget"),
        (BUDGET.replace("patches = 1", "patches = -1"), r"\$\.budget\[0\]\.patches"),
        (BUDGET.replace('why = "a"', 'why = ""'), r"\$\.budget\[0\]\.why"),
        (BUDGET + DROPPED.replace("2026-11-28", '"soon"'), r"\$\.dropped\[0\]\.date"),
        (BUDGET + DROPPED + "colour = 1\n", "colour"),
        ("[[budget\n", "ledger.toml"),
    ],
)
def test_wrong_entry_is_named(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "ledger.toml").write_text(text)
    with pytest.raises(ConfigError, match=what) as caught:
        ledger.load(tmp_path / "ledger.toml")
    assert caught.value.where == str(tmp_path / "ledger.toml")


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ledger\.toml: missing"):
        ledger.load(tmp_path / "ledger.toml")


def test_leaving_out_takes_what_needs_it(tmp_path: Path) -> None:
    good = (ROOT / "tests/data/series/rules/P010/pass/model/a.patch").read_bytes()
    (tmp_path / "m").mkdir()
    for name, need in (("a", ""), ("b", "m/a"), ("c", "m/b"), ("d", "")):
        line = f"Spark-Needs: {need}\n" if need else ""
        (tmp_path / "m" / f"{name}.patch").write_bytes(
            good.replace(b"model/a\nSpark-Kind", f"m/{name}\nSpark-Kind".encode()).replace(
                b"Signed-off", f"{line}Signed-off".encode()
            )
        )
    (tmp_path / "series").write_text("m/a.patch\nm/b.patch\nm/c.patch\nm/d.patch\n")
    series = load(tmp_path)
    assert [patch.stem for patch in series.without({"m/a"}).patches] == ["m/d"]
    assert [patch.stem for patch in series.without({"m/c"}).patches] == ["m/a", "m/b", "m/d"]
    assert series.without({"m/a"}).digest != series.digest
