"""What became of each image, in rows and in words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from vllm_spark.distro.aot.splice import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_spark.distro.aot.splice import Image

__all__ = ["EXTENSION_COLUMNS", "IMAGE_COLUMNS", "extension_rows", "image_rows", "open_ends"]

EXTENSION_COLUMNS = ("extension", *(state.value for state in State))
IMAGE_COLUMNS = ("extension", "fat binary", "image", "kernels", "bytes there", "bytes now", "state")


def extension_rows(images: Sequence[Image]) -> list[tuple[str, ...]]:
    """Numbers of fat binaries by extension and state."""
    counts = Counter((one.extension, one.state) for one in images)
    names = sorted({one.extension for one in images})
    return [(name, *(str(counts[name, state]) for state in State)) for name in names]


def image_rows(images: Sequence[Image]) -> list[tuple[str, ...]]:
    """One row for each fat binary that the device can use."""
    return [
        (
            one.extension.rpartition("/")[2],
            str(one.container),
            one.label,
            str(one.kernels) if one.kernels else "",
            str(one.room),
            str(one.size) if one.size else "",
            f"{one.state.value}: {one.reason}" if one.reason else one.state.value,
        )
        for one in sorted(images, key=lambda one: (one.extension, one.container))
    ]


def open_ends(images: Sequence[Image]) -> list[str]:
    """What the driver will still have to compile, and why, one line per reason."""
    groups = Counter((one.state, one.reason) for one in images if one.state in (State.MISSING, State.KEPT))
    kernels: Counter[tuple[State, str]] = Counter()
    for one in images:
        kernels[one.state, one.reason] += one.kernels
    return [
        f"{count} images ({kernels[state, reason]} kernels) {state.value}" + (f": {reason}" if reason else "")
        for (state, reason), count in groups.items()
    ]
