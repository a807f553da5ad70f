"""The threat table of docs/security.md: each row names tests that exist; rows that had none get them here."""

from __future__ import annotations

import ast
import json
import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes import checkpoints
from vllm_spark import paths
from vllm_spark.cli.main import main
from vllm_spark.runtime.quant import cache

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = paths.repo_root()
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def rows() -> list[str]:
    text = (ROOT / "docs" / "security.md").read_text()
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| an attacker")]


def test_each_threat_has_a_test_that_exists() -> None:
    assert len(rows()) >= 15
    for row in rows():
        named = _TEST.findall(row)
        assert named, row
        for path, function in named:
            assert (ROOT / path).is_file(), path
            assert not function or f"def {function}(" in (ROOT / path).read_text(), f"{path}::{function}"


def names_in(path: Path) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node
        elif isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


FORBIDDEN = {"pickle", "marshal", "shelve", "eval", "exec", "torch.load", "yaml.load", "os.system", "tempfile.mktemp"}


def test_nothing_of_ours_runs_what_data_say() -> None:
    """No pickle, no eval, no shell, no unsafe extraction, and nobody trusts a checkpoint's code on a user's behalf."""
    bad = []
    for path in sorted((ROOT / "vllm_spark").rglob("*.py")):
        for name, node in names_in(path):
            words = {keyword.arg: ast.unparse(keyword.value) for keyword in getattr(node, "keywords", [])}
            extracts = name.endswith((".extractall", ".extract")) and words.get("filter") != "'data'"
            if (
                name in FORBIDDEN
                or words.get("shell") == "True"
                or words.get("trust_remote_code") == "True"
                or extracts
            ):
                bad.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {name}")
    assert not bad


class Bomb:
    """What a hostile checkpoint holds: loading it by pickle runs code."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.target,)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    checkpoints.write_moe(folder, layers=1, experts=2, hidden=128, inter=64)
    ran = tmp_path / "ran"
    config = json.loads((folder / "config.json").read_text()) if (folder / "config.json").is_file() else {}
    config |= {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(ran)))
    return folder


def test_a_checkpoint_that_asks_for_code_is_read_as_data(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pickle.loads((hostile / "pytorch_model.bin").read_bytes())  # noqa: S301 - shows that the bomb works
    ran = hostile.parent / "ran"
    assert ran.exists()
    ran.unlink()
    assert main(["layers", str(hostile)]) == 0
    assert "loaded" in capsys.readouterr().out
    assert not ran.exists()


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/outside.safetensors", "sub/../../outside.safetensors"]
)
def test_a_shard_index_cannot_name_files_outside_the_checkpoint(
    hostile: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = next(hostile.glob("*.safetensors"))
    (hostile.parent / "outside.safetensors").write_bytes(shard.read_bytes())
    (hostile / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    assert main(["layers", str(hostile)]) != 0
    assert "error: " in capsys.readouterr().err


def test_pruning_a_cache_follows_no_link_out_of_it(tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "entry.json").write_text('{"inputs": {}, "crc": {}, "consumed": []}')
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / ("0" * 64)).symlink_to(outside)
    (folder / ".deadbeef.tmp").symlink_to(outside)
    cache.prune(folder, 0)
    assert (outside / "entry.json").is_file()
