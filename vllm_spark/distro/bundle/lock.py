"""From requirements to one wheel per project, each with its hash and size: uv resolves, we choose the file.

uv writes a lock in the standard form (PEP 751), which names every wheel that the target could take. A bundle or
an image holds one of them: the one that pip would choose.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import msgspec
import requests
from packaging.utils import canonicalize_name

from vllm_spark import proc
from vllm_spark.distro.index.clients import uv
from vllm_spark.distro.upstream.pins import FilePin
from vllm_spark.errors import ArtefactError, ConfigError, ProcessError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm_spark.distro.bundle.target import Target

__all__ = ["Lock", "Locked", "read_lock", "resolve"]

_LINE = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)==(\S+) --hash=sha256:([0-9a-f]{64})")
_TIMEOUT = (20, 60)


class Locked(FilePin, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One wheel of a lock.

    Attributes:
        project, version: normalised.
        url: where it is: http(s), or `file:` for our own index; empty once it lies in a bundle.
    """

    role: str = "wheel"
    project: str
    version: str
    url: str = ""


@dataclass(frozen=True)
class Lock:
    """What is to be installed on `target`, by project."""

    target: Target
    wheels: tuple[Locked, ...]

    @property
    def text(self) -> str:
        """The lock as pip reads it with --require-hashes: one line per wheel, one hash per line."""
        return "".join(f"{one.project}=={one.version} --hash=sha256:{one.sha256}\n" for one in self.wheels)

    @property
    def size(self) -> int:
        """Bytes of all wheels."""
        return sum(one.size for one in self.wheels)


def resolve(
    wanted: Sequence[str],
    index: str,
    target: Target,
    *,
    dependencies: bool = True,
    known: Mapping[str, str] | None = None,
) -> Lock:
    """Resolve `wanted`, ours from `index` and the rest from the index that this machine uses.

    Args:
        wanted: requirements.
        index: address of our index's `simple/`; uv takes a name from it first, and from nowhere else if it has it.
        dependencies: also what they depend on.
        known: SHA-256 by project, from an earlier lock; another file is then no answer.

    Raises:
        ConfigError: a requirement cannot be satisfied for the target.
        ArtefactError: the lock names a file whose hash is not in `known`, or none at all.
        ResourceError: an index does not answer.
    """
    command = [uv(), "pip", "compile", "--only-binary", ":all:", "--no-header", "--quiet", "--format", "pylock.toml"]
    # Nothing is built, so the target's Python need not be here; uv would fetch one otherwise.
    command += ["--python", sys.executable, "--no-python-downloads"]
    command += [*target.uv, "--index", index, *([] if dependencies else ["--no-deps"]), "-"]
    try:
        text = proc.run(command, stdin="\n".join(wanted).encode()).text
    except ProcessError as err:
        last = " ".join(line.strip() for line in err.output.strip().splitlines()[-4:])
        raise ConfigError(f"cannot be resolved: {last}", where=", ".join(wanted), hint="-v shows uv's command") from err
    packages = tomllib.loads(text)["packages"]
    return Lock(target, tuple(_locked(package, target, known) for package in packages))


def _locked(package: dict[str, Any], target: Target, known: Mapping[str, str] | None) -> Locked:
    name = package["name"]
    files = {unquote(urlsplit(wheel["url"]).path).rsplit("/", 1)[-1]: wheel for wheel in package.get("wheels", ())}
    if known is not None:
        files = {file: wheel for file, wheel in files.items() if wheel["hashes"].get("sha256") == known.get(name)}
    chosen = target.best(list(files))
    if chosen is None:
        what = "no wheel of the locked hash" if known is not None else "no wheel for the target"
        raise ArtefactError(what, where=f"{name} {package['version']}", hint="resolve anew, without a lock")
    wheel = files[chosen]
    size = wheel.get("size") or _size(wheel["url"])
    record = {"project": name, "version": package["version"], "name": chosen, "size": size, "url": wheel["url"]}
    try:
        return msgspec.convert(record | {"sha256": wheel["hashes"]["sha256"]}, Locked)
    except (msgspec.ValidationError, KeyError) as err:
        raise ArtefactError(f"the index gives no usable entry: {err}", where=chosen) from err


def _size(url: str) -> int:
    """Length of a file whose index does not tell it."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path)).stat().st_size
    try:
        reply = requests.head(url, timeout=_TIMEOUT, allow_redirects=True)
        reply.raise_for_status()
        return int(reply.headers["Content-Length"])
    except (requests.RequestException, KeyError, ValueError) as err:
        raise ResourceError(f"its size cannot be learnt: {err}", where=url, hint="check the network and retry") from err


def read_lock(path: Path) -> dict[str, tuple[str, str]]:
    """A lock's text: project -> (version, SHA-256).

    Raises:
        ConfigError: it is missing, or a line is not of that form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(
            f"not a lock: {err}", where=str(path), hint="name the lock.txt of a release or bundle"
        ) from err
    found: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None or match[1] in found:
            raise ConfigError("not 'project==version --hash=sha256:…'", where=f"{path}:{number}", hint="make it anew")
        found[canonicalize_name(match[1])] = (match[2], match[3])
    return found
