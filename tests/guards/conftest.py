"""What every guard stands on: the patched tree, and a Python that can import vLLM from it.

A guard is a test that is red without its patch. `vllm-spark series guards` runs it in two trees: green is demanded
in the full one, red in the one without the patch. Red means that an assertion failed. Any other exception, in a
fixture or in the test itself, counts as an error and proves nothing, because a missing compiler looks the same. So a
guard asserts on what a program did (`assert done.status == 0, done.output`) instead of letting it raise.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark import paths, proc
from vllm_spark.distro.series import trees
from vllm_spark.errors import ToolMissing

TREE = "VLLM_SPARK_TREE"
PYTHON = "VLLM_SPARK_VLLM_PYTHON"


@pytest.fixture(scope="session")
def tree() -> Path:
    """The patched tree: `VLLM_SPARK_TREE`, else the whole series applied to the pinned base (kept in the cache)."""
    given = os.environ.get(TREE)
    found = Path(given) if given else trees.full_tree()
    assert (found / "vllm" / "__init__.py").is_file(), f"{found} holds no vllm/__init__.py"
    return found


@pytest.fixture(scope="session")
def vllm_python() -> Callable[..., proc.Finished]:
    """`vllm_python(tree, code, *args, env={}, timeout=300)` runs Python with vLLM imported from `tree`.

    `code` is a program text, or the `Path` of a script. Nothing raises when it fails: assert on `status`, `text` and
    `output`. The tree holds no compiled extension: what needs none imports (model code, loaders, quantisation
    configs, the emulated kernels).
    """
    python = Path(os.environ.get(PYTHON) or paths.repo_root() / ".venv-vllm" / "bin" / "python")
    if not python.exists():
        raise ToolMissing("no Python with vLLM's requirements", where=str(python), hint="make .venv-vllm/.done")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "PYTHON"))}

    def run(
        tree: Path, code: str | Path, *args: str, env: dict[str, str] | None = None, timeout: float = 300
    ) -> proc.Finished:
        settings = {"PYTHONPATH": str(tree), "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        program = ["-c", code] if isinstance(code, str) else [str(code)]
        # -P: the current folder holds names (build, tests) that must not shadow anything
        argv = [str(python), "-P", *program, *args]
        return proc.run(argv, env={**clean, **settings, **(env or {})}, check=False, timeout=timeout)

    return run
