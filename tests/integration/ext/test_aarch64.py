"""The release wheel on aarch64, emulated: pip takes it, Python imports it, and its CPU operators are right."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.integration.ext import oracle
from tests.integration.ext.aarch64 import Emulated, emulated
from vllm_spark.distro import profile
from vllm_spark.distro.ext import build

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

PROGRAM = """
import json, platform, sys
import numpy as np, torch
from vllm_spark.runtime import kernels

x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
packed = kernels.e2m1_pack(x)
every = torch.arange(256, dtype=torch.uint8)
try:
    kernels.e2m1_pack(torch.zeros(3))
except RuntimeError as err:
    refused = str(err)
print(json.dumps({
    "machine": platform.machine(), "torch": torch.__version__, "cuda": torch.version.cuda,
    "library": str(kernels.load()), "path": kernels.e2m1_path(), "packed": packed.tolist(),
    "unpacked": kernels.e2m1_unpack(every, torch.float16).tolist(), "refused": refused,
}))
"""


@pytest.fixture(scope="module")
def system() -> Emulated:
    return emulated()


def pip_install(system: Emulated, wheel: Path, into: Path) -> tuple[int, str]:
    # Its dependencies are not for a CPU torch; that they resolve is the index's test.
    options = ("--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    done = system.python("-m", "pip", "install", *options, "--target", into, wheel)
    return done.status, done.output


def test_installs_imports_and_computes(system: Emulated, gb10_wheel: Path, tmp_path: Path) -> None:
    status, said = pip_install(system, gb10_wheel, tmp_path / "installed")
    assert status == 0, said
    done = system.python("-c", PROGRAM, path=(tmp_path / "installed",))
    assert done.status == 0, done.output
    told = json.loads(done.text)
    assert (told["machine"], told["torch"], told["cuda"]) == ("aarch64", "2.10.0+cpu", None)
    assert told["library"] == str(tmp_path / "installed" / build.LIBRARY)
    assert told["path"] == "software"
    assert "must be even" in told["refused"]
    patterns = np.arange(-(1 << 15), 1 << 15, dtype=np.int64).astype(np.uint16).astype(np.uint32) << 16
    assert told["packed"] == oracle.packed(patterns.view(np.float32)).tolist()
    signed = [*oracle.MAGNITUDES, *(-value for value in oracle.MAGNITUDES)]
    assert told["unpacked"] == [signed[code] for byte in range(256) for code in (byte & 15, byte >> 4)]


def test_pip_refuses_the_wheel_of_another_machine(system: Emulated, gb10_wheel: Path, tmp_path: Path) -> None:
    tag = profile.load("h100-cu130").platform_tag
    other = tmp_path / gb10_wheel.name.replace(profile.load("gb10-cu130").platform_tag, tag)
    other.write_bytes(gb10_wheel.read_bytes())
    status, said = pip_install(system, other, tmp_path / "installed")
    assert status == 1
    assert "is not a supported wheel on this platform" in said
