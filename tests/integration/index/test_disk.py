"""What the file system refuses ends in one line, exit code 10, and an index as it was. Needs Linux namespaces."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tests.unit.index import wheels
from vllm_spark import proc

if TYPE_CHECKING:
    from pathlib import Path

UNSHARE = ["--mount", "--map-root-user", "sh", "-e", "-c"]


def in_small_disk(script: str, tmp_path: Path) -> proc.Finished:
    """Run a script with a fresh 256 KiB file system at $DISK and `index` for our verb."""
    unshare = proc.require("unshare", hint="apt-get install util-linux")
    head = 'mount -t tmpfs -o size=256k none "$DISK"; index() { "$PYTHON" -m vllm_spark index "$@"; }\n'
    (tmp_path / "disk").mkdir()
    known = {"DISK": str(tmp_path / "disk"), "PYTHON": sys.executable, "IN": str(tmp_path / "in")}
    return proc.run([unshare, *UNSHARE, head + script], env=os.environ | known, check=False)


def test_a_full_disk_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    wheels.make(tmp_path / "in", "vllm-spark", "1")
    wheels.make(tmp_path / "in", "vllm-spark", "2", content=b"#" * 300_000)
    wheels.make(tmp_path / "in", "vllm-spark", "3", content=b"#" * 150_000)
    done = in_small_disk(
        """
        index build "$DISK/i" "$IN"/*-1-*
        index build "$DISK/i" "$IN"/*-2-* && exit 99 || echo "code $?"
        head -c 60000 /dev/zero > "$DISK/ballast"
        index build "$DISK/i" "$IN"/*-3-* "$IN"/*-2-* && exit 99 || echo "code $?"
        (cd "$DISK/i" && sha256sum --check --quiet SHA256SUMS && find . -name '*-[23]-*' -o -name '.staging')
        index verify "$DISK/i" --without-clients
        """,
        tmp_path,
    )
    assert done.status == 0, done.output
    assert done.text.count("code 10") == 2
    assert done.output.count("MiB needed") == 2
    assert done.text.splitlines()[-1].endswith("1 files, rules I001 I002 I003 I005 I006 hold")
    assert "Traceback" not in done.output


def test_a_disk_that_fills_up_in_the_middle(tmp_path: Path) -> None:
    """Enough room for the wheel by its size, none for the pages after it."""
    wheels.make(tmp_path / "in", "vllm-spark", "1")
    for version in range(2, 60):
        wheels.make(tmp_path / "in", "vllm-spark", str(version), content=b"#" * 2000)
    done = in_small_disk(
        """
        index build "$DISK/i" "$IN"/*-1-*
        index build "$DISK/i" "$IN"/* && exit 99 || echo "code $?"
        (cd "$DISK/i" && sha256sum --check --quiet SHA256SUMS && find . -name '*-2-*' -o -name '.staging')
        index verify "$DISK/i" --without-clients
        index build "$DISK/i" "$IN"/*-2-* "$IN"/*-3-*
        index verify "$DISK/i" --without-clients
        """,
        tmp_path,
    )
    assert done.status == 0, done.output
    assert "code 10" in done.text
    assert done.text.splitlines()[-1].endswith("3 files, rules I001 I002 I003 I005 I006 hold")
    assert "Traceback" not in done.output


def test_a_read_only_disk(tmp_path: Path) -> None:
    wheels.make(tmp_path / "in", "vllm-spark", "1")
    done = in_small_disk(
        """
        mount -o remount,ro "$DISK"
        index build "$DISK/i" "$IN"/*-1-* && exit 99 || echo "code $?"
        """,
        tmp_path,
    )
    assert done.text.splitlines() == ["code 10"]
    assert "not writable" in done.output
    assert "Traceback" not in done.output
