"""Guard of kv/auto-literal: `--gpu-memory-utilization auto` reaches the plugin that sizes the KV cache."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark import proc

pytestmark = pytest.mark.slow  # each imports vLLM anew

PARSE = """
import sys
from vllm.config import cache
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
values = [parser.parse_args(["--gpu-memory-utilization", text]).gpu_memory_utilization for text in ("auto", "0.5")]
print("parsed", *map(repr, values), flush=True)
def answer(args):
    args.worker_cls, args.gpu_memory_utilization = "mine.Worker", 0.92
cache.auto_memory_resolver = answer
args = EngineArgs(model=sys.argv[1], gpu_memory_utilization="auto")
print("resolved", args.worker_cls, args.gpu_memory_utilization)
"""
REFUSED = """
import sys
from vllm.engine.arg_utils import EngineArgs
try:
    EngineArgs(model=sys.argv[1], gpu_memory_utilization="auto")
except ValueError as err:
    print("refused", err)
"""


def test_the_command_line_takes_auto(tree: Path, vllm_python: Callable[..., proc.Finished]) -> None:
    done = vllm_python(tree, PARSE, str(tree))
    assert done.status == 0, done.output
    assert "parsed 'auto' 0.5" in done.text
    assert "resolved mine.Worker 0.92" in done.text


def test_auto_without_a_plugin_is_refused(tree: Path, vllm_python: Callable[..., proc.Finished]) -> None:
    done = vllm_python(tree, REFUSED, str(tree), env={"VLLM_PLUGINS": ""})
    assert "refused --gpu-memory-utilization auto needs a plugin" in done.text, done.output
