"""Which sdist a release is: the pins in git, else what the index announced when this machine first asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import requests
from packaging.version import InvalidVersion, Version
from pypi_simple import DistributionPackage, NoSuchProjectError, PyPISimple, UnsupportedContentTypeError

from vllm_spark import console, paths
from vllm_spark.distro.upstream.fetch import index_url
from vllm_spark.distro.upstream.pins import FilePin
from vllm_spark.errors import ConfigError, IntegrityError, ResourceError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.upstream.pins import Upstream

__all__ = ["announced", "known", "newer", "normalise", "pin_of", "read_known"]

_TIMEOUT = (20, 120)  # seconds to connect, seconds without a byte


class _Known(msgspec.Struct, forbid_unknown_fields=True):
    files: tuple[FilePin, ...] = ()


def normalise(text: str) -> str:
    """A version as upstream writes it.

    Raises:
        ConfigError: it is none.
    """
    try:
        return str(Version(text.removeprefix("v")))
    except InvalidVersion:
        raise ConfigError("not a version", where=text, hint="write it like 0.34.0") from None


def read_known(path: Path) -> tuple[FilePin, ...]:
    """The pins of `patches/known.toml`: sdists of releases that the series has been on, or was compared with.

    Raises:
        ConfigError: the file is malformed.
    """
    if not path.exists():
        return ()
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_Known).files
    except msgspec.DecodeError as err:
        raise ConfigError(str(err), where=str(path), hint="compare it with the version in git") from err


def known(upstream: Upstream, version: str, folder: Path) -> FilePin | None:
    """The pin of a release's sdist in the checkout, if it has one."""
    name = f"{upstream.project}-{version}.tar.gz"
    candidates = [*upstream.files, *read_known(folder / "known.toml")]
    return next((pin for pin in candidates if pin.name == name), None)


def pin_of(upstream: Upstream, version: str, folder: Path) -> FilePin:
    """The pin of a release's sdist; one that git does not hold is kept in the cache from its first use on.

    Raises:
        ConfigError: the index has no such release.
        IntegrityError: the index gives no hash for it.
        ResourceError: the index does not answer.
    """
    found = known(upstream, version, folder)
    if found is not None:
        return found
    kept = paths.cache_dir("pins") / f"{upstream.project}-{version}.json"
    if kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=FilePin)
    pins = announced(upstream.project, version)
    sdist = next((pin for pin in pins if pin.role == "sdist"), None)
    if sdist is None:
        near = ", ".join(sorted(_versions(upstream.project), key=Version)[-3:]) or "none"
        what = f"the index has no sdist of {upstream.project} {version}; the newest are {near}"
        raise ConfigError(what, where=version, hint="check the version, or name --source")
    console.warn(f"{sdist.name}: pinned by this first use to SHA-256 {sdist.sha256}; the branch will hold the pin")
    paths.atomic_write(kept, msgspec.json.encode(sdist))
    return sdist


def announced(project: str, version: str) -> tuple[FilePin, ...]:
    """The files of a release that the index announces with a hash: its sdist, and its CUDA wheels.

    Raises:
        IntegrityError: the index gives no hash.
        ResourceError: the index does not answer.
    """
    return tuple(_pin(package) for package in _packages(project) if package.version == version and _role(package))


def newer(project: str, version: str, *, pre: bool = False) -> list[str]:
    """The releases above `version` that have an sdist, ascending; yanked ones do not count."""
    base = Version(version)
    found = [Version(name) for name in _versions(project)]
    return [str(each) for each in sorted(found) if each > base and (pre or not each.is_prerelease)]


def _versions(project: str) -> set[str]:
    return {
        package.version
        for package in _packages(project)
        if package.version and package.package_type == "sdist" and not package.is_yanked and _valid(package.version)
    }


def _valid(version: str) -> bool:
    try:
        Version(version)
    except InvalidVersion:
        return False
    return True


def _packages(project: str) -> list[DistributionPackage]:
    url = index_url()
    try:
        with PyPISimple(url) as client:
            return client.get_project_page(project, timeout=_TIMEOUT).packages
    except NoSuchProjectError:
        raise ConfigError(f"the index has no project {project}", where=url, hint="check VLLM_SPARK_INDEX_URL") from None
    except (requests.RequestException, UnsupportedContentTypeError) as err:
        raise ResourceError(f"the index does not answer: {err}", where=url, hint="check the network and retry") from err


def _role(package: DistributionPackage) -> str:
    if package.package_type == "sdist":
        return "sdist"
    return "wheel" if package.package_type == "wheel" and _machine(package.filename) else ""


def _machine(name: str) -> str:
    platform = name.removesuffix(".whl").rpartition("-")[2]
    machines = [machine for machine in ("aarch64", "x86_64") if platform.endswith(f"_{machine}")]
    return machines[0] if machines and "linux" in platform else ""


def _pin(package: DistributionPackage) -> FilePin:
    digest = package.digests.get("sha256")
    if digest is None:
        hint = "download it by hand and pin it in patches/known.toml"
        raise IntegrityError("the index announces no SHA-256", where=package.filename, hint=hint)
    size = package.size if package.size is not None else _size(package)
    machine = "" if package.package_type == "sdist" else _machine(package.filename)
    return FilePin(role=_role(package), name=package.filename, sha256=digest, size=size, machine=machine)


def _size(package: DistributionPackage) -> int:
    """What the server says that it would send; the download is held to it."""
    try:
        with requests.get(package.url, stream=True, timeout=_TIMEOUT) as reply:
            reply.raise_for_status()
            return int(reply.headers["Content-Length"])
    except (requests.RequestException, KeyError, ValueError) as err:
        raise ResourceError(f"the index gives no size: {err}", where=package.filename, hint="retry") from err
