"""A packed cache from a file or a URL, verified before anything of it is used."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import requests

from vllm_spark import paths
from vllm_spark.distro.upstream.fetch import sha256_of
from vllm_spark.errors import ConfigError, IntegrityError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["open_packed"]

_CHUNK = 1 << 20
_LIMIT = 1 << 30  # bytes; all of vLLM 0.33.0 takes less than a tenth
_TIMEOUT = (20, 120)  # seconds to connect, seconds without a byte


@contextlib.contextmanager
def open_packed(place: str, sha256: str | None) -> Iterator[Path]:
    """The file at `place`; a download goes away again afterwards.

    Args:
        place: a path, or an http(s) URL.
        sha256: what it must have. It is machine code that runs in the server, so a URL needs it.

    Raises:
        ConfigError: a URL without `sha256`, or no such file.
        IntegrityError: it has another one, or is larger than any packed cache.
        ResourceError: the server does not answer, or the disk is full.
    """
    if not place.startswith(("https://", "http://")):
        path = Path(place)
        if not path.is_file():
            raise ConfigError("no such file", where=place)
        _check(path, place, sha256)
        yield path
        return
    if sha256 is None:
        raise ConfigError("a URL needs --sha256", where=place, hint="take it from who packed the cache")
    with tempfile.TemporaryDirectory(dir=paths.cache_dir(), prefix="aot-") as folder:
        path = Path(folder) / "packed.tar"
        _download(place, path)
        _check(path, place, sha256)
        yield path


def _check(path: Path, place: str, sha256: str | None) -> None:
    found = sha256_of(path)
    if sha256 is not None and found != sha256.lower():
        raise IntegrityError(f"SHA-256 is {found}, not {sha256}", where=place, hint="fetch it again")


def _download(url: str, path: Path) -> None:
    try:
        with (
            paths.resource_errors(path),
            requests.get(url, stream=True, timeout=_TIMEOUT) as reply,
            path.open("wb") as file,
        ):
            reply.raise_for_status()
            for block in reply.iter_content(_CHUNK):
                file.write(block)
                if file.tell() > _LIMIT:
                    raise IntegrityError(f"more than {_LIMIT} bytes", where=url)
    except requests.RequestException as err:
        raise ResourceError(f"download failed: {err}", where=url, hint="check the network and retry") from err
