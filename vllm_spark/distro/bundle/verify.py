"""Is a bundle, folder or tar, what its own list says, and does the list hold together?"""

from __future__ import annotations

import hashlib
import tarfile
from typing import TYPE_CHECKING

import msgspec

from vllm_spark.distro import sums
from vllm_spark.distro.bundle.lock import Lock
from vllm_spark.distro.bundle.make import FORMAT, Contents
from vllm_spark.distro.bundle.target import Target
from vllm_spark.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

__all__ = ["verify"]

_TEXT = ("bundle.json", "lock.txt", "install.sh", sums.NAME)
_TEXT_LIMIT = 16 << 20
_HINT = "copy the bundle again, or make it anew"


def verify(bundle: Path) -> Contents:
    """Hash every file of a bundle and compare lock, contents and sums with each other.

    Returns:
        What is in it.

    Raises:
        ArtefactError: a file is missing, altered, cut short or strange; the first is named.
        ConfigError: there is no such file.
    """
    if not bundle.exists():
        raise ConfigError("no such bundle", where=str(bundle))
    try:
        digests, texts = _read(bundle)
    except (tarfile.TarError, EOFError) as err:
        raise ArtefactError(f"not a tar, or cut short: {err}", where=str(bundle), hint=_HINT) from err
    problem = next(_problems(bundle, digests, texts), None)
    if problem is not None:
        raise ArtefactError(problem, where=str(bundle), hint=_HINT)
    return msgspec.json.decode(texts["bundle.json"], type=Contents)


def _read(bundle: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Digest of every file by name, and the text files themselves."""
    digests: dict[str, str] = {}
    texts: dict[str, bytes] = {}
    for name, file in _members(bundle):
        if name in digests:
            raise ArtefactError("is there twice", where=f"{bundle}: {name}", hint=_HINT)
        if name in _TEXT:
            texts[name] = file.read(_TEXT_LIMIT)
            digests[name] = hashlib.sha256(texts[name]).hexdigest()
        else:
            digests[name] = _digest(file)
    return digests, texts


def _digest(file: IO[bytes]) -> str:
    hasher = hashlib.sha256()
    while block := file.read(1 << 20):
        hasher.update(block)
    return hasher.hexdigest()


def _members(bundle: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if bundle.is_dir():
        for path in sorted(bundle.rglob("*")):
            name = path.relative_to(bundle).as_posix()
            if path.is_symlink():
                raise ArtefactError("is a symbolic link", where=f"{bundle}: {name}", hint=_HINT)
            if path.is_file():
                with path.open("rb") as file:
                    yield name, file
        return
    with tarfile.open(bundle, "r|") as archive:
        for member in archive:
            data = archive.extractfile(member) if member.isfile() else None
            if data is None:
                raise ArtefactError("is no plain file", where=f"{bundle}: {member.name}", hint=_HINT)
            yield member.name.partition("/")[2], data


def _problems(bundle: Path, digests: dict[str, str], texts: dict[str, bytes]) -> Iterator[str]:
    missing = [name for name in _TEXT if name not in texts]
    if missing:
        yield f"{missing[0]}: missing, so this is no whole bundle"
        return
    listed = sums.parse(texts[sums.NAME], f"{bundle}/{sums.NAME}")
    yield from sums.differences(listed, {name: digest for name, digest in digests.items() if name != sums.NAME})
    try:
        contents = msgspec.json.decode(texts["bundle.json"], type=Contents)
        target = Target(contents.python, contents.platform, contents.glibc)
    except (msgspec.DecodeError, ConfigError) as err:
        yield f"bundle.json: {err}"
        return
    if contents.format != FORMAT:
        yield f"bundle.json: format {contents.format}; this version reads {FORMAT}"
    there = {name: digest for name, digest in digests.items() if name.startswith("wheels/")}
    if {f"wheels/{one.name}": one.sha256 for one in contents.wheels} != there:
        yield "bundle.json: lists other wheels than are there"
    if Lock(target, contents.wheels).text.encode() != texts["lock.txt"]:
        yield "lock.txt: differs from bundle.json"
