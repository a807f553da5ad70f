"""The whole of `vllm-spark` resolves for a Spark: ours from our index, everything else from the default one.

The wheels are stand-ins of a kilobyte that carry the real METADATA: upstream's from the pinned wheel, ours from
pyproject.toml. A resolver reads nothing else.
"""

from __future__ import annotations

import os
import re
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.integration.index.server import Server, serve
from tests.unit.index import wheels
from vllm_spark import paths, proc
from vllm_spark.distro.index import clients, tree
from vllm_spark.distro.index.reading import read_metadata
from vllm_spark.distro.index.state import load
from vllm_spark.distro.upstream import fetch, pins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    upstream = pins.load()
    pin = next(pin for pin in upstream.files if pin.role == "wheel" and pin.machine == "aarch64")
    real = read_metadata(fetch.fetch(upstream.project, pin))
    ours, count = re.subn(rb"(?m)^Version: .*$", f"Version: {upstream.vllm_version}".encode(), real, count=1)
    assert count == 1
    project = tomllib.loads((paths.repo_root() / "pyproject.toml").read_text())["project"]
    made = [
        wheels.make(tmp_path, "vllm", upstream.vllm_version, tag="cp38-abi3-manylinux_2_28_aarch64", meta=ours),
        wheels.make(
            tmp_path,
            "vllm-spark",
            project["version"],
            tag="cp311-abi3-manylinux_2_34_aarch64",
            python=project["requires-python"],
            requires=project["dependencies"],
        ),
    ]
    tree.build(tmp_path / "index", made)
    return tmp_path / "index"


@pytest.fixture
def server(out: Path) -> Iterator[Server]:
    with serve(out) as running:
        yield running


@pytest.mark.slow
def test_uv_resolves_everything_for_a_spark(out: Path, server: Server) -> None:
    command = [clients.uv(), "pip", "compile", "--only-binary", ":all:", "--generate-hashes", "--no-header"]
    command += ["--python-platform", "aarch64-manylinux_2_39", "--python-version", "3.12"]
    # The machine's own settings say which index is the default one.
    done = proc.run([*command, "--index", server.simple, "-"], env=os.environ, stdin=b"vllm-spark\n")
    lock = dict(re.findall(r"(?m)^([a-z0-9-]+)==(\S+) \\\n", done.text))
    hashes = {fact.project: f"--hash=sha256:{fact.sha256}" for fact in load(out).files}
    upstream = pins.load()
    assert lock["vllm"] == upstream.vllm_version
    assert lock["torch"] == upstream.requires.torch
    for name in ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime"):
        assert lock[name].startswith(f"{upstream.requires.cuda}."), (name, lock[name])
    assert all(digest in done.text for digest in hashes.values())
    assert len(lock) > 100
    # Resolved from the two sidecars alone.
    assert len(server.paths(".metadata")) == 2
    assert server.paths(".whl") == []
