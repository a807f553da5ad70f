"""The lines that we tell people to type, typed: a stranger's packages of our names must never be taken.

The stand-in for the default index has a `vllm-spark` and a `vllm` of the same version as ours and of a higher
one, and the one dependency that ours need.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pip
import pytest

from tests.integration.index.server import Server, serve
from tests.unit.index import wheels
from vllm_spark import proc
from vllm_spark.distro.index import clients, lines, releases, tree
from vllm_spark.distro.index.state import load

if TYPE_CHECKING:
    from collections.abc import Iterator

SPARK = {version: f"0.33.0+spark.{version[-1]}" for version in ("0.33.0.1", "0.33.0.2")}


class World(NamedTuple):
    out: Path
    ours: Server
    theirs: Server


def ours(folder: Path, version: str, *, evil: bool = False) -> list[Path]:
    content = b"EVIL = True\n" if evil else b"EVIL = False\n"
    vllm = wheels.make(folder, "vllm", SPARK.get(version, "99"), requires=["spark-dependency"], content=content)
    requires = [f"vllm=={SPARK.get(version, '99')}", "spark-dependency>=1"]
    return [vllm, wheels.make(folder, "vllm-spark", version, requires=requires, content=content)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    good, evil = tmp_path / "ours", tmp_path / "theirs"
    with serve(good) as our, serve(evil) as their:
        for version in SPARK:
            tree.build(good, ours(tmp_path / "in", version), base_url=our.url)
        for version in (*SPARK, "99"):
            tree.build(evil, ours(tmp_path / "evil", version, evil=True))
        tree.build(evil, [wheels.make(tmp_path / "evil", "spark-dependency", "1.0")])
        yield World(good, our, their)


@pytest.fixture
def venv(tmp_path: Path, world: World) -> dict[str, str]:
    """The environment of an owner's shell: a fresh virtual environment, and the default index in its settings."""
    proc.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")])
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    (site / "pip").symlink_to(Path(pip.__file__).parent)  # seconds faster than unpacking it each time
    bin_dir = tmp_path / "venv" / "bin"
    return clients.clean_environment() | {
        "PATH": f"{bin_dir}:{Path(clients.uv()).parent}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "PIP_INDEX_URL": world.theirs.simple,
        "UV_DEFAULT_INDEX": world.theirs.simple,
        "PIP_NO_CACHE_DIR": "1",
        "UV_NO_CACHE": "1",
    }


def shell(text: str, environment: dict[str, str]) -> str:
    return proc.run(["sh", "-e", "-c", text], env=environment).output


def installed(environment: dict[str, str]) -> dict[str, tuple[str, bool]]:
    code = (
        "import importlib, importlib.metadata as m\n"
        "for n in ('vllm', 'vllm-spark'):\n"
        "    print(n, m.version(n), importlib.import_module(n.replace('-', '_') + '_stand_in').EVIL)"
    )
    rows = [line.split() for line in proc.run(["python", "-c", code], env=environment).text.splitlines()]
    return {name: (version, evil == "True") for name, version, evil in rows}


def text(world: World, version: str, tool: str) -> str:
    found = lines.install(world.ours.url, lines.members(load(world.out), version))
    return found.pip if tool == "pip" else found.uv


def test_the_danger_is_real(world: World, venv: dict[str, str]) -> None:
    shell(f"python -m pip install --extra-index-url {world.ours.simple} vllm-spark", venv)
    assert installed(venv) == {"vllm": ("99", True), "vllm-spark": ("99", True)}


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_the_lines_take_ours_and_the_rest_from_the_default_index(world: World, venv: dict[str, str], tool: str) -> None:
    # A machine that also names the stranger's index as an extra one is no better protected by the index order.
    harder = venv | {"PIP_EXTRA_INDEX_URL": world.theirs.simple}
    shell(text(world, "0.33.0.2", tool), harder)
    assert installed(venv) == {"vllm": ("0.33.0+spark.2", False), "vllm-spark": ("0.33.0.2", False)}
    shell("python -m pip check && python -c 'import spark_dependency_stand_in'", venv)
    assert world.ours.paths("/simple/spark-dependency/") == []
    assert not [path for path in world.theirs.paths(".whl") if "vllm" in path]


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_rollback_lines_go_back(world: World, venv: dict[str, str], tool: str) -> None:
    shell(text(world, "0.33.0.2", tool), venv)
    back = releases.rollback(world.out)
    shell(back.lines.pip if tool == "pip" else back.lines.uv, venv)
    assert installed(venv) == {"vllm": ("0.33.0+spark.1", False), "vllm-spark": ("0.33.0.1", False)}


def test_uv_takes_a_name_from_the_first_index_that_has_it(world: World, venv: dict[str, str]) -> None:
    shell(f"uv pip install --index {world.ours.simple} vllm-spark==0.33.0.2", venv)
    assert installed(venv) == {"vllm": ("0.33.0+spark.2", False), "vllm-spark": ("0.33.0.2", False)}


def test_a_lock_with_hashes_holds_with_any_index_order(world: World, venv: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("vllm-spark==0.33.0.2\n")
    lock = tmp_path / "lock.txt"
    command = f"uv pip compile --generate-hashes --index {world.ours.simple} {tmp_path}/in.txt -o {lock}"
    shell(command, venv)
    assert lock.read_text().count("--hash=sha256:") == 3
    shell(f"python -m pip install --require-hashes -r {lock} --extra-index-url {world.ours.simple}", venv)
    assert installed(venv) == {"vllm": ("0.33.0+spark.2", False), "vllm-spark": ("0.33.0.2", False)}


def test_a_uv_project_with_an_explicit_index(world: World, venv: dict[str, str], tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(f"""
[project]
name = "serving"
version = "1"
requires-python = ">=3.11"
dependencies = ["vllm==0.33.0+spark.2", "vllm-spark==0.33.0.2"]

[[tool.uv.index]]
name = "vllm-spark"
url = "{world.ours.simple}"
explicit = true

[tool.uv.sources]
vllm = {{ index = "vllm-spark" }}
vllm-spark = {{ index = "vllm-spark" }}
""")
    shell(f"cd {project} && uv lock", {key: value for key, value in venv.items() if key != "UV_NO_CONFIG"})
    lock = (project / "uv.lock").read_text()
    assert lock.count(f'source = {{ registry = "{world.ours.simple}" }}') == 2
    assert lock.count(f'source = {{ registry = "{world.theirs.simple}" }}') == 1
