"""What is checked after applying, each by the command or the code that a person would use.

A check that was chosen off is listed as not done, never left out.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from vllm_spark import console, proc
from vllm_spark.distro.series import guards, rules, store
from vllm_spark.distro.series.apply import ApplyError, apply_series
from vllm_spark.errors import SparkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_spark.distro.rebase.checkout import Checkout
    from vllm_spark.distro.series.guards import Proof
    from vllm_spark.distro.series.patch import Patch
    from vllm_spark.distro.series.store import Series
    from vllm_spark.distro.upstream.mirror import Mirror

__all__ = ["STEPS", "Scene", "Step", "prove", "run_step"]

STEPS: dict[str, str] = {
    "guards": "guards of the python patches, with and without each",
    "native": "guards of the native patches: their sources compiled, their CMake functions run",
    "lint": "the rules of the series on the new release",
    "smoke": "import of every module that a python patch touches",
    "wheel": "both wheels built, repacked and audited by `vllm-spark release build`",
}
_IMPORT = """\
import importlib, json, sys
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except (
        ImportError, LookupError, NameError, AttributeError, SyntaxError, TypeError, ValueError, RuntimeError, OSError,
        AssertionError,
    ) as err:
        failed[name] = f"{type(err).__name__}: {err}"
print(json.dumps(failed))
"""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what came of it."""

    name: str
    state: Literal["done", "failed", "not done"]
    detail: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Scene:
    """What the checks look at.

    Attributes:
        series: the new series.
        mirror: a repository with the new release's tag.
        version: the new release.
        tree: the work tree with the whole new series.
        folder: the new patches folder.
        root: the checkout whose tests are run.
        work: a folder for files that are needed in passing.
        checkout: where the branch is.
        branch: the commit with everything; empty before it is made.
        profile: what to build the wheels for.
    """

    series: Series
    mirror: Mirror
    version: str
    tree: Path
    folder: Path
    root: Path
    work: Path
    checkout: Checkout
    branch: str = ""
    profile: str = "gb10-cu130"

    def chosen(self, cls: str) -> list[Patch]:
        """The patches of a class."""
        return [patch for patch in self.series.patches if patch.meta.cls == cls]


def run_step(name: str, scene: Scene, skip: Sequence[str]) -> Step:
    """Do one check of those that need the branch: lint, smoke, wheel."""
    if name in skip:
        return Step(name=name, state="not done", detail=f"chosen off (--skip-{name})")
    actions: dict[str, Callable[[Scene], str]] = {"lint": _lint, "smoke": _smoke, "wheel": _wheel}
    start = time.monotonic()
    try:
        with console.step(f"check: {name}"):
            problem = actions[name](scene)
    except SparkError as err:
        problem = str(err)
    seconds = round(time.monotonic() - start, 1)
    if problem:
        return Step(name=name, state="failed", detail=problem, seconds=seconds)
    return Step(name=name, state="done", detail=STEPS[name], seconds=seconds)


def prove(scene: Scene, name: str, skip: Sequence[str]) -> tuple[Step, list[Proof]]:
    """Run the guards of one class of patches, with and without each patch; `name` is guards or native."""
    if name in skip:
        return Step(name=name, state="not done", detail=f"chosen off (--skip-{name})"), []
    chosen = scene.chosen("python" if name == "guards" else "native")
    if not chosen:
        return Step(name=name, state="done", detail="no such patch"), []
    start = time.monotonic()
    try:
        proofs = guards.prove(scene.series, chosen, scene.mirror, scene.version, scene.root, scene.tree)
    except ApplyError as err:
        return Step(name=name, state="failed", detail=f"without one of the patches another fails: {err}"), []
    seconds = round(time.monotonic() - start, 1)
    bad = [proof for proof in proofs if not proof.holds]
    words = [f"{proof.guard}: {proof.complete} with all, {proof.without} without ({proof.detail})" for proof in bad]
    if bad:
        return Step(name=name, state="failed", detail="; ".join(words), seconds=seconds), proofs
    detail = f"{len(proofs)} guards: green with all patches, red without their own"
    return Step(name=name, state="done", detail=detail, seconds=seconds), proofs


def _lint(scene: Scene) -> str:
    context = rules.Context(store.survey(scene.folder), scene.root, scene.mirror, scene.version)
    return "; ".join(map(str, rules.check(context)))


def _smoke(scene: Scene) -> str:
    names = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for patch in scene.chosen("python")
        for change in patch.changes
        for name in (change.path,)
        if name.startswith("vllm/") and name.endswith(".py") and (scene.tree / name).exists()
    }
    python = Path(os.environ.get("VLLM_SPARK_VLLM_PYTHON") or scene.root / ".venv-vllm" / "bin" / "python")
    if not python.exists():
        return f"{python}: no Python with vLLM's requirements; make .venv-vllm/.done"
    failed = _import(python, scene.tree, ["vllm", *sorted(names)])
    if not failed:
        return ""
    bare = scene.work / "bare"
    apply_series(store.Series(()), scene.mirror, scene.version, bare)
    stock = _import(python, bare, list(failed))
    shutil.rmtree(bare)
    ours = [f"{name}: {why}" for name, why in failed.items() if name not in stock]
    if not ours:
        console.say(f"modules that the release itself cannot import here: {', '.join(failed)}")
    return "; ".join(ours)


def _import(python: Path, tree: Path, names: list[str]) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "PYTHON"))}
    env = {**clean, "PYTHONPATH": str(tree), "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    done = proc.run([python, "-P", "-B", "-c", _IMPORT, *names], env=env, cwd=tree.parent, check=False, timeout=600)
    last = done.text.strip().rpartition("\n")[2]
    if done.status != 0 or not last.startswith("{"):
        tail = (done.output.strip().splitlines() or [f"exit status {done.status}"])[-1]
        return dict.fromkeys(names, tail)
    found: dict[str, str] = json.loads(last)
    return found


def _wheel(scene: Scene) -> str:
    where = scene.work / "checkout"
    shutil.rmtree(where, ignore_errors=True)
    scene.checkout.write_out(scene.branch, where)
    out = scene.work / "dist"
    argv = [sys.executable, "-m", "vllm_spark", "release", "build", "--profile", scene.profile, "--out", str(out)]
    done = proc.run(argv, cwd=scene.root, env={**os.environ, "VLLM_SPARK_ROOT": str(where)}, check=False)
    errors = [line for line in done.output.splitlines() if line.startswith("error: ")]
    if done.status == 0:
        return ""
    return errors[-1].removeprefix("error: ") if errors else f"exit status {done.status}: {done.output[-300:]}"
