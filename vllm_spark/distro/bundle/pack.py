"""Writing a bundle as a folder or as one tar."""

from __future__ import annotations

import contextlib
import io
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from vllm_spark import paths

__all__ = ["Add", "writer"]

Add = Callable[[str, bytes | Path], None]


@contextlib.contextmanager
def writer(out: Path) -> Iterator[Add]:
    """A function that adds bytes or a file under a name; `out` appears, whole, when the block ends well.

    Nothing of this machine gets into a tar: names in the order they are added, no owner, time 0, fixed modes.
    """
    if out.suffix == ".tar":
        with paths.atomic_file(out) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            yield lambda name, what: _to_tar(tar, f"{out.stem}/{name}", what)
    else:
        with paths.atomic_dir(out) as fresh:
            yield lambda name, what: _to_folder(fresh / name, what)


def _to_tar(tar: tarfile.TarFile, name: str, what: bytes | Path) -> None:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    if isinstance(what, bytes):
        info.size = len(what)
        tar.addfile(info, io.BytesIO(what))
    else:
        info.size = what.stat().st_size
        with what.open("rb") as file:
            tar.addfile(info, file)


def _to_folder(path: Path, what: bytes | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(what, bytes):
        path.write_bytes(what)
    else:
        shutil.copyfile(what, path)
    path.chmod(0o644)
    path.parent.chmod(0o755)
