"""Guard of model/gemma4-expert-keys: every known layout of a Gemma 4 checkpoint, through upstream's own loaders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_spark.proc import Finished

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent.parent / "data" / "guards"
# Layout -> the layout of the same format that always loaded, and whose content it must reproduce.
LOADED = {"A": "A", "C": "C", "D": "F", "F": "F", "G dotted": "G dotted"}
MENDED = {"B": "A", "C2": "C", "D2": "F", "F2": "F", "G": "G dotted"}
# Layout -> what the refusal must name.
REFUSED = {
    "E": "experts.gate_up_proj_weight",
    "E2": "experts.gate_up_proj.weight",
    "H": "",  # stops in torch, at the scalars
    "router scale": "layers.0.router.proj.weight_scale",
}


@pytest.fixture(scope="module")
def layouts(tree: Path, vllm_python: Callable[..., Finished]) -> dict[str, dict[str, Any]]:
    done = vllm_python(tree, DATA / "gemma4_layouts.py", env={"PYTHONPATH": f"{tree}:{DATA}"})
    assert done.status == 0, done.output[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(done.text)
    assert set(found) == {*LOADED, *MENDED, *REFUSED}
    return found


def _assert_loaded(layouts: dict[str, dict[str, Any]], layout: str, like: str) -> None:
    found = layouts[layout]
    assert not found["error"]
    assert not found["stale"]  # no parameter kept a byte of what its memory held before
    assert found["content"] == layouts[like]["content"]


@pytest.mark.parametrize("layout", MENDED)
def test_layouts_load(layouts: dict[str, dict[str, Any]], layout: str) -> None:
    _assert_loaded(layouts, layout, MENDED[layout])


def test_scale_under_moe_reaches_the_router(layouts: dict[str, dict[str, Any]]) -> None:
    assert layouts["D2"]["scale"]


@pytest.mark.parametrize("layout", LOADED)
def test_layouts_that_loaded_still_do(layouts: dict[str, dict[str, Any]], layout: str) -> None:
    _assert_loaded(layouts, layout, LOADED[layout])


@pytest.mark.parametrize("layout", REFUSED)
def test_layouts_that_cannot_load_say_so(layouts: dict[str, dict[str, Any]], layout: str) -> None:
    assert REFUSED[layout] in layouts[layout]["error"]
    assert layouts[layout]["error"]
