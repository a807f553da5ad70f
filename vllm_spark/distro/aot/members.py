"""The shared objects of a wheel as files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import paths
from vllm_spark.distro.aot.splice import splice
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import FileSource
from vllm_spark.distro.wheel.archive import Wheel
from vllm_spark.distro.wheel.names import SHARED_OBJECT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from vllm_spark.distro.aot.splice import Image, Supply

__all__ = ["extracted", "survey"]


def extracted(wheel: Path, folder: Path, only: Collection[str] | None = None) -> Iterator[FileSource]:
    """Write each shared object of `wheel` to `folder`, and open it under its member name; the caller closes it.

    Args:
        only: these members; None means all.

    Raises:
        ArtefactError, IntegrityError: the wheel is not sound.
        ResourceError: no space.
    """
    with Wheel(wheel) as archive:
        names = [
            name for name in sorted(archive.members) if (SHARED_OBJECT.search(name) if only is None else name in only)
        ]
        paths.require_space(folder, sum(archive.members[name].file_size for name in names))
        for index, name in enumerate(names):
            path = folder / str(index)
            with path.open("wb") as file:
                file.writelines(archive.chunks(name))
            yield FileSource(path, name)


def survey(path: Path, supply: Supply) -> list[Image]:
    """Each fat binary that the device can use in a wheel or a shared object, as a rewrite would leave it.

    Raises:
        ArtefactError, IntegrityError: the file is not sound.
    """
    images: list[Image] = []
    with tempfile.TemporaryDirectory(dir=paths.cache_dir(), prefix="aot-") as folder:
        for source in extracted(path, Path(folder)) if path.suffix == ".whl" else [FileSource(path)]:
            with source:
                images += splice(source, read_shared_object(source).containers, supply).images
    return images
