"""A repack that is told to stop leaves nothing behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_spark.distro.upstream import fetch, pins

pytestmark = pytest.mark.slow
DEADLINE = 60  # seconds; the work below begins within one


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_nothing_half_written(tmp_path: Path, stop: signal.Signals) -> None:
    upstream = pins.load()
    official = fetch.fetch(upstream.project, upstream.file("wheel", "aarch64"))
    command = ["repack", str(official), "--out", str(tmp_path), "--version", "0.33.0+spark.1", "--keep-for", "12.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm_spark", "wheel", *command], stderr=subprocess.PIPE, start_new_session=True
    )
    started = time.monotonic()
    while not list(tmp_path.iterdir()):
        assert process.poll() is None
        assert time.monotonic() - started < DEADLINE
        time.sleep(0.05)
    process.send_signal(stop)
    _, talk = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert b"nothing half-written was kept" in talk
    assert list(tmp_path.iterdir()) == []
