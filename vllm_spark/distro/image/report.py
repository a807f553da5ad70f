"""What `image verify` found, as a file that a release can refer to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vllm_spark.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Part", "Report", "read_report"]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One layer: the start of the command that made it, and its bytes, packed and not."""

    made_by: str
    compressed: int
    unpacked: int


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An image as its bytes tell it.

    Attributes:
        digest: of the manifest; what `IMAGE@sha256:…` names.
        wheels: SHA-256 of our wheels by file name, as the labels say and the files in the layers prove.
        compressed: bytes of all layers as they are pulled.
        unpacked: bytes of all files.
        base_unpacked: bytes of the base's files.
        packages: unpacked bytes of each installed distribution.
        added: what the image adds to base and wheels.
    """

    digest: str
    platform: str
    base: str
    wheels: dict[str, str]
    compressed: int
    unpacked: int
    base_unpacked: int
    packages: dict[str, int]
    added: int
    layers: tuple[Part, ...]


def read_report(path: Path) -> Report:
    """Read what `image verify --report` wrote.

    Raises:
        ConfigError: there is no such file.
        ArtefactError: it is no such report.
    """
    if not path.is_file():
        raise ConfigError("no such file", where=str(path), hint="vllm-spark image verify DIR --report FILE")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.DecodeError as err:
        raise ArtefactError(f"not a report of an image: {err}", where=str(path), hint="verify the image again") from err
