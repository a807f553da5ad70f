"""The small parts: what is said, how many at once, where a packed cache may come from, what the audit expects."""

import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_spark.distro.aot import fill, summary
from vllm_spark.distro.aot.fetch import open_packed
from vllm_spark.distro.aot.splice import Image, State
from vllm_spark.distro.elf.target import Support
from vllm_spark.distro.wheel.expected import ExpectedExtension
from vllm_spark.errors import ConfigError, IntegrityError, ResourceError

IMAGES = (
    Image("x/_b.so", 1, "compute_80", 28, 3000, 400, State.COMPILED),
    Image("x/_b.so", 0, "compute_80", 16, 2000, 0, State.MISSING),
    Image("x/_a.so", 3, "sm_120f", 0, 900, 0, State.NATIVE),
    Image("x/_b.so", 2, "compute_90", 2, 900, 0, State.KEPT, "needs 901 bytes where 900 are"),
    Image("x/_b.so", 4, "compute_90", 1, 900, 0, State.MISSING),
)


def test_summary() -> None:
    assert summary.extension_rows(IMAGES) == [("x/_a.so", "1", "0", "0", "0"), ("x/_b.so", "0", "1", "2", "1")]
    assert summary.EXTENSION_COLUMNS == ("extension", "native", "compiled", "not in the cache", "kept as PTX")
    rows = summary.image_rows(IMAGES)
    assert [row[:3] for row in rows[:2]] == [("_a.so", "3", "sm_120f"), ("_b.so", "0", "compute_80")]
    assert rows[3][-1] == "kept as PTX: needs 901 bytes where 900 are"
    assert summary.open_ends(IMAGES) == [
        "2 images (17 kernels) not in the cache",
        "1 images (2 kernels) kept as PTX: needs 901 bytes where 900 are",
    ]


@pytest.mark.parametrize(
    ("wanted", "largest", "available_gib", "jobs"),
    [
        (None, 20 << 20, 64, 4),  # one per core
        (2, 20 << 20, 64, 2),
        (9, 20 << 20, 64, 4),  # never more than cores
        (None, 20 << 20, 5, 2),  # 2 GiB each, 1 GiB left to the machine
        (None, 20 << 20, 1, 1),  # one must be possible
        (None, 0, 0, 1),
    ],
)
def test_jobs(monkeypatch: pytest.MonkeyPatch, wanted: int | None, largest: int, available_gib: int, jobs: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))
    text = f"MemTotal: 99 kB\nMemAvailable: {available_gib << 20} kB\n"
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    assert fill.jobs_for(wanted, largest) == jobs


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on loopback, and its folder."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


def test_packed_cache_from_a_url(served: tuple[str, Path]) -> None:
    url, folder = served
    (folder / "x.tar").write_bytes(b"packed")
    digest = hashlib.sha256(b"packed").hexdigest()
    with open_packed(f"{url}/x.tar", digest.upper()) as path:
        assert path.read_bytes() == b"packed"
    assert not path.exists()
    with pytest.raises(IntegrityError, match=f"SHA-256 is {digest}"), open_packed(f"{url}/x.tar", "00" * 32):
        pass
    with pytest.raises(ConfigError, match="needs --sha256"), open_packed(f"{url}/x.tar", None):
        pass
    with pytest.raises(ResourceError, match="download failed"), open_packed(f"{url}/missing.tar", digest):
        pass


def test_packed_cache_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with pytest.raises(ConfigError, match="no such file"), open_packed(str(path), None):
        pass
    path.write_bytes(b"packed")
    with open_packed(str(path), None) as found:
        assert found == path
    with pytest.raises(IntegrityError, match="SHA-256 is"), open_packed(str(path), "00" * 32):
        pass
    assert path.exists()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (281, (Support.JIT, 10, 281)),  # nothing compiled
        (208, (Support.NATIVE, 83, 208)),
        (0, (Support.NATIVE, 291, 0)),
        (282, (Support.JIT, 10, 281)),  # more than there were: no outcome of the step, so the rule will say so
    ],
)
def test_expected_after_the_step(found: int, expected: tuple[Support, int, int]) -> None:
    one = ExpectedExtension(Support.JIT, native=10, jit=281, aot=True)
    after = one.after_aot(found)
    assert (after.verdict, after.native, after.jit) == expected
    without = ExpectedExtension(Support.JIT, native=10, jit=281)
    assert without.after_aot(found) is without
