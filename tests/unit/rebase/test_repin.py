"""Rewritten pins: values change, and nothing else does."""

import datetime as dt
import tomllib

import msgspec
import pytest

from vllm_spark import paths
from vllm_spark.distro.rebase import repin
from vllm_spark.distro.rebase.known import normalise
from vllm_spark.distro.series.ledger import Ledger
from vllm_spark.distro.upstream.pins import FilePin, Requires, Upstream
from vllm_spark.errors import ConfigError

ROOT = paths.repo_root()
NEW = Requires("2.15.0", "13.1", ">=3.12,<3.15", "0.8.0")
SDIST = FilePin(role="sdist", name="vllm-0.34.0.tar.gz", sha256="a" * 64, size=5)
ARM = FilePin(role="wheel", machine="aarch64", name="vllm-0.34.0-cp38-abi3-x_aarch64.whl", sha256="b" * 64, size=6)
RISCV = FilePin(role="wheel", machine="riscv64", name="vllm-0.34.0-cp38-abi3-x_riscv64.whl", sha256="c" * 64, size=7)


def upstream_text() -> str:
    return (ROOT / "patches" / "upstream.toml").read_text()


def decode(text: str) -> Upstream:
    return msgspec.toml.decode(text.encode(), type=Upstream)


def comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def test_real_pins_for_another_release() -> None:
    text = repin.repin(upstream_text(), "0.34.0", NEW, [SDIST, ARM, RISCV])
    pins = decode(text)
    assert (pins.version, pins.spark, pins.requires) == ("0.34.0", 1, NEW)
    assert pins.files == (SDIST, ARM, RISCV)  # the x86_64 wheel is gone, a new machine comes last
    assert comments(text) == comments(upstream_text())


def test_without_wheels_the_sdist_stays() -> None:
    assert decode(repin.repin(upstream_text(), "0.34.0", NEW, [SDIST])).files == (SDIST,)


def test_the_same_pins_give_the_same_bytes() -> None:
    pins = decode(upstream_text())
    text = repin.repin(upstream_text(), pins.version, pins.requires, pins.files)
    assert text == upstream_text().replace(f"spark = {pins.spark}\n", "spark = 1\n")


def test_known_pins_are_added_once() -> None:
    once = repin.remember("# kept\n", [SDIST])
    assert once.startswith("# kept\n")
    assert repin.remember(once, [SDIST]) == once
    both = repin.remember(once, [SDIST, ARM])
    assert [each["name"] for each in tomllib.loads(both)["files"]] == [SDIST.name, ARM.name]
    assert "\n\n[[files]]\n" in both


@pytest.mark.parametrize("why", ["upstream fixed it", 'quotes " and \\ and\nlines', "é ✓"])
def test_dropped_patch_in_the_real_ledger(why: str) -> None:
    text = (ROOT / "patches" / "ledger.toml").read_text()
    new = repin.drop(text, "kv/x", "0.34.0", why, "", dt.date(2026, 12, 1))
    entry = msgspec.toml.decode(new.encode(), type=Ledger).dropped[-1]
    assert (entry.patch, entry.base, entry.why, entry.date) == ("kv/x", "0.34.0", why, dt.date(2026, 12, 1))
    assert new.startswith(text.rstrip("\n"))


def test_our_own_version_follows() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    old = decode(upstream_text())
    new = repin.own_version(text, old, "0.34.0")
    project = tomllib.loads(new)["project"]
    assert project["version"] == "0.34.0.1"
    assert "vllm==0.34.0+spark.1" in project["dependencies"]
    changed = [pair for pair in zip(text.splitlines(), new.splitlines(), strict=True) if pair[0] != pair[1]]
    assert len(changed) == 2


@pytest.mark.parametrize("broken", ["files = 3\n[base]\n[requires]\n", "[base]\n", ""])
def test_other_files_are_refused(broken: str) -> None:
    with pytest.raises((ConfigError, KeyError)):
        repin.repin(broken, "0.34.0", NEW, [SDIST])


@pytest.mark.parametrize(
    ("text", "version"), [("0.34.0", "0.34.0"), ("v0.34.0", "0.34.0"), ("0.34.0-rc1", "0.34.0rc1")]
)
def test_versions_as_people_write_them(text: str, version: str) -> None:
    assert normalise(text) == version


@pytest.mark.parametrize("text", ["", "newest", "0.34.x", "../0.34.0", "0.34.0\n1"])
def test_no_versions(text: str) -> None:
    with pytest.raises(ConfigError):
        normalise(text)
