"""Making a bundle: first the sizes, then the files into the cache, then the bundle, whole or not at all.

    bundle.json     what it is for and what is in it
    lock.txt        project==version --hash=sha256:…, one line per wheel
    wheels/         the wheels, pip's own among them
    install.sh      installs them into a new virtual environment
    SHA256SUMS      every file above

An interrupted run leaves no bundle, but keeps what it downloaded: the next one goes on from there.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

import msgspec

from vllm_spark import console, paths
from vllm_spark.distro import sums
from vllm_spark.distro.bundle.lock import Lock, Locked, read_lock, resolve
from vllm_spark.distro.bundle.pack import writer
from vllm_spark.distro.index import folder as index_folder
from vllm_spark.distro.upstream import fetch
from vllm_spark.errors import ArtefactError, ConfigError, IntegrityError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_spark.distro.bundle.target import Target

__all__ = ["FORMAT", "Contents", "Plan", "index_address", "make", "plan"]

FORMAT = 1
_INSTALLER = "pip"


class Contents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`bundle.json`. `unpacked` is what the wheels take on the disk; `wanted` the requirements asked for."""

    format: int
    wanted: tuple[str, ...]
    python: str
    platform: str
    glibc: str
    unpacked: int
    wheels: tuple[Locked, ...]


@dataclass(frozen=True)
class Plan:
    """What a bundle will hold.

    Attributes:
        missing: bytes that must still be downloaded.
    """

    wanted: tuple[str, ...]
    lock: Lock
    missing: int


def index_address(index: str) -> str:
    """The address of an index's `simple/`, from a folder or a URL."""
    if urlsplit(index).scheme in ("http", "https"):
        return f"{index.rstrip('/').removesuffix('/simple')}/simple/"
    index_folder.read_sums(Path(index))
    return f"{Path(index).resolve().as_uri()}/simple/"


def plan(
    wanted: Sequence[str], index: str, target: Target, *, dependencies: bool = True, lock: Path | None = None
) -> Plan:
    """Resolve, and find out what must be downloaded; nothing is.

    Args:
        wanted: requirements; pip, which installs the bundle, comes along unasked.
        index: our index: a folder or its address.
        dependencies: also what they depend on.
        lock: take exactly what this file names, instead of `wanted`.

    Raises:
        ConfigError, ArtefactError, ResourceError: see `lock.resolve`.
    """
    address = index_address(index)
    if lock is None:
        found = resolve([*wanted, _INSTALLER], address, target, dependencies=dependencies)
    else:
        pins = read_lock(lock)
        wanted = [f"{project}=={version}" for project, (version, _sha256) in pins.items()]
        known = {project: sha256 for project, (_version, sha256) in pins.items()}
        found = resolve(wanted, address, target, dependencies=False, known=known)
    if all(one.project != _INSTALLER for one in found.wheels):
        raise ConfigError("does not hold pip, which installs the bundle", where=str(lock), hint="add pip to the lock")
    remote = [one for one in found.wheels if not _is_local(one)]
    return Plan(tuple(wanted), found, sum(one.size - fetch.cached(one) for one in remote))


def make(planned: Plan, out: Path) -> Path:
    """Download what is missing and write the bundle: a tar where `out` ends in `.tar`, else a folder.

    Raises:
        ResourceError: no space for it, known before anything is downloaded; or the download fails.
        IntegrityError: a file is not what the lock says.
        ConfigError: `out` is there already.
    """
    if out.exists():
        raise ConfigError("exists already", where=str(out), hint="remove it, or name another")
    paths.require_folder(out.parent)
    paths.require_space(out.parent, planned.lock.size + planned.missing)
    files = _collect(planned.lock)
    texts = _texts(planned, files)
    with writer(out) as add:
        for name, data in texts.items():
            add(name, data)
        for name, path in files.items():
            add(f"wheels/{name}", path)
    return out


def _collect(lock: Lock) -> dict[str, Path]:
    files: dict[str, Path] = {}
    done = 0
    for number, one in enumerate(lock.wheels, 1):
        have = f"{done / 2**20:.0f} of {lock.size / 2**20:.0f} MiB"
        console.say(f"[{number}/{len(lock.wheels)}, {have}] {one.name}")
        files[one.name] = _local(one) if _is_local(one) else fetch.fetch_url(one.url, one)
        done += one.size
    return files


def _is_local(one: Locked) -> bool:
    return urlsplit(one.url).scheme == "file"


def _local(one: Locked) -> Path:
    path = Path(url2pathname(urlsplit(one.url).path))
    if fetch.sha256_of(path) != one.sha256:
        raise IntegrityError("not what the index says", where=str(path), hint="vllm-spark index verify names the fault")
    return path


def _texts(planned: Plan, files: dict[str, Path]) -> dict[str, bytes]:
    """Everything but the wheels, by name; SHA256SUMS covers the wheels too."""
    lock, target = planned.lock, planned.lock.target
    unpacked = sum(_unpacked(path) for path in files.values())
    bare = tuple(msgspec.structs.replace(one, url="") for one in lock.wheels)
    contents = Contents(FORMAT, planned.wanted, target.python, target.platform, target.glibc, unpacked, bare)
    values = {"PYTHON": target.python, "PLATFORM": target.platform, "GLIBC": target.glibc, "UNPACKED": str(unpacked)}
    values["COUNT"] = str(len(files) + 3)
    values["PIP"] = next(one.name for one in lock.wheels if one.project == _INSTALLER)
    script = (resources.files(__package__) / "install.sh").read_text()
    for key, value in values.items():
        script = script.replace(f"@{key}@", value)
    described = msgspec.json.format(msgspec.json.encode(contents), indent=1) + b"\n"
    texts = {"bundle.json": described, "lock.txt": lock.text.encode(), "install.sh": script.encode()}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in texts.items()}
    digests |= {f"wheels/{one.name}": one.sha256 for one in lock.wheels}
    return texts | {sums.NAME: sums.dump(digests)}


def _unpacked(path: Path) -> int:
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(info.file_size for info in archive.infolist())
    except zipfile.BadZipFile as err:
        raise ArtefactError(f"not a wheel: {err}", where=path.name, hint="report it to the project") from err
