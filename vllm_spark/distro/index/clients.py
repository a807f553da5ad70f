"""pip and uv as judges: would they install this file from this folder?"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from vllm_spark import proc
from vllm_spark.errors import ToolMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.index.facts import FileFact

__all__ = ["clean_environment", "refusals", "uv"]

# The Spark's own Python first.
_PYTHONS = ((3, 12), (3, 11), (3, 13), (3, 14))


def clean_environment() -> dict[str, str]:
    """Our environment without what the machine tells pip and uv about indexes, caches and constraints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_NO_CONFIG": "1"}


def uv() -> str:
    """The uv beside this Python, else the one on PATH.

    Raises:
        ToolMissing: there is none.
    """
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else proc.require("uv", hint="python -m pip install uv")


def refusals(out: Path, fact: FileFact) -> Iterator[str]:
    """One sentence for each client that does not choose `fact` from the index in `out`.

    Raises:
        ToolMissing: pip or uv is not installed, so nobody can judge.
    """
    if importlib.util.find_spec("pip") is None:
        raise ToolMissing("not installed", where="pip", hint=f"{sys.executable} -m ensurepip")
    tags = parse_wheel_filename(fact.filename)[3]
    named = {tag.platform for tag in tags}
    known = [platform for platform in named if platform == "any" or platform.startswith("manylinux_")]
    if not known:
        yield f"{fact.filename}: {', '.join(sorted(named))} promises no glibc, so it fits no machine for sure"
        return
    platform = min(known)
    python = _python(fact, tags, platform)
    if python is None:
        yield f"{fact.filename}: no Python of {', '.join(f'{a}.{b}' for a, b in _PYTHONS)} takes it"
        return
    index = f"{out.resolve().as_uri()}/simple"
    pin = f"{fact.project}=={fact.version}"
    with tempfile.TemporaryDirectory(prefix="vllm-spark-") as target:
        for name, command in _commands(index, target, platform, python).items():
            done = proc.run([*command, pin], env=clean_environment(), check=False, timeout=120)
            if done.status != 0:
                lines = done.output.strip().splitlines() or ["no output"]
                yield f"{fact.filename}: {name} refuses it: {lines[-1].strip()}"


def _commands(index: str, target: str, platform: str, python: str) -> dict[str, list[str]]:
    common = ["install", "--dry-run", "--no-deps", "--only-binary", ":all:", "--target", target]
    common += ["--python-version", python]
    pip = [sys.executable, "-m", "pip", *common, "--quiet", "--no-cache-dir", "--index-url", index]
    judge = [uv(), "pip", *common, "--no-cache", "--offline", "--default-index", index, "--python", sys.executable]
    if platform != "any":
        machine = platform.split("_", 3)[3]
        pip += ["--implementation", "cp", "--platform", platform]
        judge += ["--python-platform", f"{machine}-manylinux_2_40"]
    return {"pip": pip, "uv": judge}


def _python(fact: FileFact, tags: frozenset[Tag], platform: str) -> str | None:
    requires = SpecifierSet(fact.requires_python or "")
    for version in _PYTHONS:
        fits = {*cpython_tags(version, platforms=[platform]), *compatible_tags(version, platforms=[platform])}
        text = ".".join(map(str, version))
        if f"{text}.0" in requires and not tags.isdisjoint(fits):
            return text
    return None
