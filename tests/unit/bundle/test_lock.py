"""One wheel per project: the one that the target's pip would take, by its hash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vllm_spark.distro.bundle import make
from vllm_spark.distro.bundle.lock import read_lock
from vllm_spark.distro.bundle.target import Target
from vllm_spark.distro.index.state import load
from vllm_spark.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (["a-1-py3-none-any.whl", "a-1-cp312-cp312-manylinux_2_17_aarch64.whl"], 1),
        (["a-1-cp312-cp312-manylinux_2_17_aarch64.whl", "a-1-cp312-cp312-manylinux_2_34_aarch64.whl"], 1),
        (["a-1-cp311-abi3-manylinux_2_34_aarch64.whl", "a-1-cp312-cp312-manylinux_2_40_aarch64.whl"], 0),
        (["a-1-cp312-cp312-manylinux2014_aarch64.manylinux_2_17_aarch64.whl"], 0),
        (["a-1-cp313-cp313-manylinux_2_28_aarch64.whl"], None),
        (["a-1-cp312-cp312-manylinux_2_28_x86_64.whl"], None),
        (["a-1-cp312-cp312-musllinux_1_2_aarch64.whl"], None),
        (["a-1-py2.py3-none-any.whl"], 0),
        ([], None),
    ],
)
def test_the_wheel_that_pip_would_take(names: list[str], best: int | None) -> None:
    assert Target().best(names) == (None if best is None else names[best])


@pytest.mark.parametrize(
    "values",
    [("3", "aarch64", "2.39"), ("2.7", "aarch64", "2.39"), ("3.12", "riscv64", "2.39"), ("3.12", "aarch64", "x")],
)
def test_a_target_that_cannot_be(values: tuple[str, str, str]) -> None:
    with pytest.raises(ConfigError):
        Target(*values)


def test_each_project_once_with_its_hash_and_size(index: Path, planned: make.Plan) -> None:
    facts = {fact.filename: fact for fact in load(index).files}
    assert [one.project for one in planned.lock.wheels] == ["pip", "vllm", "vllm-spark"]
    for one in planned.lock.wheels:
        assert (one.sha256, one.size) == (facts[one.name].sha256, facts[one.name].size)
    assert "manylinux_2_39" in planned.lock.wheels[1].name
    older = make.plan(["vllm-spark"], str(index), Target(glibc="2.35"))
    assert "manylinux_2_28_aarch64" in older.lock.wheels[1].name
    assert planned.missing == 0


def test_without_dependencies(index: Path) -> None:
    found = make.plan(["vllm-spark"], str(index), Target(), dependencies=False)
    assert [one.project for one in found.lock.wheels] == ["pip", "vllm-spark"]


def test_what_cannot_be_resolved_is_one_line(index: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be resolved: .*vllm-spark") as caught:
        make.plan(["vllm-spark==9"], str(index), Target())
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="this is no index"):
        make.plan(["vllm-spark"], str(tmp_path), Target())


def test_a_lock_gives_the_same_wheels_again(pristine: Path, planned: make.Plan, tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(planned.lock.text)
    assert make.plan([], str(pristine), Target(), lock=lock).lock == planned.lock
    assert {name: pin[1] for name, pin in read_lock(lock).items()} == {
        one.project: one.sha256 for one in planned.lock.wheels
    }


def test_a_lock_of_other_bytes_is_no_lock_of_these(index: Path, planned: make.Plan, tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(planned.lock.text.replace(planned.lock.wheels[1].sha256, "0" * 64))
    with pytest.raises(ArtefactError, match=r"vllm 1\.0\+spark\.1: no wheel of the locked hash"):
        make.plan([], str(index), Target(), lock=lock)


@pytest.mark.parametrize(
    "line",
    [
        "vllm==1.0",
        "vllm>=1.0 --hash=sha256:" + "0" * 64,
        "vllm==1.0 --hash=sha1:" + "0" * 40,
        "-r other.txt",
        "vllm @ https://example.org/vllm.whl",
        "",
    ],
)
def test_lines_that_no_lock_has(tmp_path: Path, line: str) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=r"lock\.txt:1"):
        read_lock(lock)


def test_a_lock_without_pip_cannot_install_itself(index: Path, planned: make.Plan, tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("".join(planned.lock.text.splitlines(keepends=True)[1:]))
    with pytest.raises(ConfigError, match="does not hold pip"):
        make.plan([], str(index), Target(), lock=lock)
