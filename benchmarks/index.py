"""How long an index of 500 releases takes: to add one more, and to write every page anew from its facts.

Stand-in wheels of a few kilobytes carry a METADATA as long as vLLM's (40 kB), two per release. Their size does
not matter to either figure: a run reads only the wheels that it adds.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import Figure, report
from vllm_spark.distro.index import tree
from vllm_spark.distro.index.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

RELEASES = 500


def wheel(folder: Path, name: str, version: str, tag: str, requires: str = "") -> Path:
    stem = f"{name.replace('-', '_')}-{version}"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: >=3.11,<3.15\n{requires}\n"
    members = {f"{stem}.dist-info/METADATA": (head + "A line of a README as long as vLLM's.\n" * 1000).encode()}
    members[f"{stem}.dist-info/WHEEL"] = f"Wheel-Version: 1.0\nTag: {tag}\n".encode()
    digests = {path: base64.urlsafe_b64encode(hashlib.sha256(data).digest()) for path, data in members.items()}
    record = "".join(f"{path},sha256={digest.decode().rstrip('=')},\n" for path, digest in digests.items())
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in (members | {f"{stem}.dist-info/RECORD": record.encode()}).items():
            archive.writestr(zipfile.ZipInfo(member), data)
    return path


def release(folder: Path, number: int) -> list[Path]:
    base = f"0.{number // 20}.{number % 20}"
    pin = f"Requires-Dist: vllm=={base}+spark.1\n"
    return [
        wheel(folder, "vllm", f"{base}+spark.1", "cp38-abi3-manylinux_2_28_aarch64"),
        wheel(folder, "vllm-spark", f"{base}.1", "cp311-abi3-manylinux_2_34_aarch64", pin),
    ]


def timed(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def rebuild(out: Path) -> None:
    """Every page, from the facts alone."""
    shutil.rmtree(out / "simple")
    (out / "index.html").unlink()
    tree.build(out)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="vllm-spark-bench-") as name:
        folder, out = Path(name), Path(name) / "index"
        first = [path for number in range(RELEASES) for path in release(folder, number)]
        fresh = timed(lambda: tree.build(out, first))
        again = timed(lambda: rebuild(out))
        one_more = timed(lambda: tree.build(out, release(folder, RELEASES)))
        check = timed(lambda: verify(out, with_clients=False))
    return report(
        "index",
        [
            Figure(f"all pages of {RELEASES} releases anew", again, "s", "< 10 s", again < 10),
            Figure(f"one release added to {RELEASES}", one_more, "s", "< 10 s", one_more < 10),
            Figure(f"{RELEASES} releases from their wheels", fresh, "s"),
            Figure(f"verify {RELEASES + 1} releases, pip and uv not asked", check, "s", "< 30 s", check < 30),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
