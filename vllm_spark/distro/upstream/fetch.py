"""Pinned files from the package index, by project and file name, into a cache that only holds verified bytes."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import requests
from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    DistributionPackage,
    NoSuchProjectError,
    PyPISimple,
    UnsupportedContentTypeError,
)

from vllm_spark import console, paths
from vllm_spark.errors import ConfigError, IntegrityError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vllm_spark.distro.upstream.pins import FilePin

__all__ = ["cached", "fetch", "fetch_url", "index_url", "sha256_hex", "sha256_of"]

_CHUNK = 1 << 20
_TIMEOUT = (20, 120)  # seconds to connect, seconds without a byte


def index_url() -> str:
    """The index to ask: `VLLM_SPARK_INDEX_URL`, else the one that pip or uv are told of, else PyPI."""
    for name in ("VLLM_SPARK_INDEX_URL", "PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
        if os.environ.get(name):
            return os.environ[name]
    return PYPI_SIMPLE_ENDPOINT


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_hex(data: bytes) -> str:
    """Hex SHA-256 of bytes at hand."""
    return hashlib.sha256(data).hexdigest()


def fetch(project: str, pin: FilePin) -> Path:
    """The pinned file in the cache, downloaded if it is not there yet.

    An interrupted download leaves a partial file that the next call resumes; nothing reaches its final name
    before its size and SHA-256 agree with the pin. Two processes that want the same file take turns.

    Raises:
        IntegrityError: the index or the bytes disagree with the pin, or the download is cut short.
        ConfigError: the index has no such file.
        ResourceError: no space, no permission, or the index does not answer.
    """
    return _fetch(pin, lambda: _locate(project, pin).url)


def fetch_url(url: str, pin: FilePin) -> Path:
    """The same for a file whose address is known, such as from a lock; the pin says whether it is the right one.

    Raises:
        IntegrityError, ResourceError: see `fetch`.
    """
    return _fetch(pin, lambda: url)


def cached(pin: FilePin) -> int:
    """How many bytes of the pinned file the cache has: the whole, a part that can be resumed, or none."""
    folder = paths.cache_dir("downloads")
    for path in (folder / pin.name, folder / f".{pin.name}.part"):
        if path.is_file():
            return min(path.stat().st_size, pin.size)
    return 0


def _fetch(pin: FilePin, locate: Callable[[], str]) -> Path:
    folder = paths.cache_dir("downloads")
    path = folder / pin.name
    with paths.lock(folder / f".{pin.name}.lock", wait=True):
        if path.exists():
            if path.stat().st_size == pin.size and sha256_of(path) == pin.sha256:
                return path
            console.warn(f"{path}: not what is pinned; fetching it anew")
            path.unlink()
        part = folder / f".{pin.name}.part"
        have = part.stat().st_size if part.exists() else 0
        paths.require_space(part, pin.size - have)
        _download(locate(), pin, part)
        part.replace(path)
    return path


def _locate(project: str, pin: FilePin) -> DistributionPackage:
    url = index_url()
    try:
        with PyPISimple(url) as client:
            page = client.get_project_page(project, timeout=_TIMEOUT)
    except NoSuchProjectError:
        raise ConfigError(f"the index has no project {project}", where=url, hint="check VLLM_SPARK_INDEX_URL") from None
    except (requests.RequestException, UnsupportedContentTypeError) as err:
        raise ResourceError(f"the index does not answer: {err}", where=url, hint="check the network and retry") from err
    found = next((package for package in page.packages if package.filename == pin.name), None)
    if found is None:
        raise ConfigError("the index has no such file", where=pin.name, hint="check the pin, or VLLM_SPARK_INDEX_URL")
    announced = found.digests.get("sha256")
    if announced is not None and announced != pin.sha256:
        raise IntegrityError(
            f"the index announces SHA-256 {announced}, the pin says {pin.sha256}",
            where=pin.name,
            hint="find out which is right before you change the pin",
        )
    return found


def _download(url: str, pin: FilePin, part: Path) -> None:
    """Append what is missing of the file at `url` to `part`, then check the whole."""
    try:
        with paths.resource_errors(part):
            _receive(url, pin, part)
    except requests.RequestException as err:
        hint = "run the command again; it goes on where it stopped"
        raise ResourceError(f"download failed: {err}", where=pin.name, hint=hint) from err
    size = part.stat().st_size
    if size < pin.size:
        hint = "run the command again; it goes on where it stopped"
        raise IntegrityError(f"cut short: {size} of {pin.size} bytes", where=pin.name, hint=hint)
    digest = sha256_of(part)
    if size != pin.size or digest != pin.sha256:
        part.unlink()
        raise IntegrityError(
            f"SHA-256 {digest} ({size} bytes), the pin says {pin.sha256} ({pin.size} bytes)",
            where=pin.name,
            hint="run again; if it stays, the index serves other bytes than were pinned",
        )


def _receive(url: str, pin: FilePin, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have >= pin.size:
        return
    headers = {"Range": f"bytes={have}-"} if have else {}
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as reply:
        reply.raise_for_status()
        resumed = reply.status_code == requests.codes.partial_content
        with part.open("ab" if resumed else "wb") as file, console.progress(pin.name, pin.size) as bar:
            bar.advance(have if resumed else 0)
            for chunk in reply.iter_content(_CHUNK):
                file.write(chunk)
                bar.advance(len(chunk))
                if file.tell() > pin.size:  # a stranger's endless file must not fill the disk
                    return
