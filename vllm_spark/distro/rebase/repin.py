"""Rewriting the pins of the base: values change, comments and order stay."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import tomlkit
from tomlkit.items import AoT, Table

from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from tomlkit.toml_document import TOMLDocument

    from vllm_spark.distro.upstream.pins import FilePin, Requires, Upstream

__all__ = ["drop", "own_version", "remember", "repin"]


def repin(text: str, version: str, requires: Requires, files: Sequence[FilePin]) -> str:
    """`upstream.toml` for another release.

    An entry of `files` keeps its place and its comments where the new release has the same role for the same machine;
    one that it has no more goes, and new ones come last.
    """
    document = tomlkit.parse(text)
    base = _table(document, "base")
    base["version"], base["spark"] = version, 1
    wanted = _table(document, "requires")
    for key in ("torch", "cuda", "python", "flashinfer"):
        wanted[key] = getattr(requires, key)
    entries = document["files"]
    if not isinstance(entries, AoT):
        raise ConfigError("files is no array of tables", where="patches/upstream.toml", hint="restore it from git")
    rest = {(pin.role, pin.machine): pin for pin in files}
    for index in reversed(range(len(entries))):
        entry = entries[index]
        pin = rest.pop((str(entry["role"]), str(entry.get("machine", ""))), None)
        if pin is None:
            del entries[index]
            continue
        for key in ("name", "sha256", "size"):
            entry[key] = getattr(pin, key)
    for pin in rest.values():
        entries.append(_entry(pin))
    return _spaced(tomlkit.dumps(document))


def remember(text: str, pins: Sequence[FilePin]) -> str:
    """`known.toml` with these pins added."""
    document = tomlkit.parse(text)
    entries = document.setdefault("files", tomlkit.aot())
    have = {str(entry["name"]) for entry in entries}
    for pin in pins:
        if pin.name not in have:
            entries.append(_entry(pin))
    return _spaced(tomlkit.dumps(document))


def drop(text: str, patch: str, base: str, why: str, upstream: str, date: dt.date) -> str:
    """`ledger.toml` with one more dropped patch."""
    document = tomlkit.parse(text)
    entry = tomlkit.table()
    entry["patch"], entry["date"], entry["base"], entry["why"] = patch, date, base, why
    if upstream:
        entry["upstream"] = upstream
    entries = document.setdefault("dropped", tomlkit.aot())
    entries.append(entry)
    return _spaced(tomlkit.dumps(document))


def own_version(text: str, old: Upstream, version: str) -> str:
    """`pyproject.toml` with our own version, and the vLLM that it requires, for another base."""
    document = tomlkit.parse(text)
    project = _table(document, "project")
    project["version"] = f"{version}.1"
    needs = project["dependencies"]
    for index, need in enumerate(list(needs)):
        if str(need) == f"{old.project}=={old.vllm_version}":
            needs[index] = f"{old.project}=={version}+spark.1"
    return _spaced(tomlkit.dumps(document))


def _spaced(text: str) -> str:
    """An empty line before each entry of an array of tables, as a person writes it; a comment stays on its entry."""
    return re.sub(r"^([^#\n].*)\n\[\[", r"\1\n\n[[", text, flags=re.MULTILINE)


def _entry(pin: FilePin) -> Table:
    entry = tomlkit.table()
    for key in ("role", "machine", "name", "sha256", "size"):
        value = getattr(pin, key)
        if value != "":
            entry[key] = value
    return entry


def _table(document: TOMLDocument, key: str) -> Table:
    value = document.get(key)
    if not isinstance(value, Table):
        raise ConfigError(f"no table [{key}]", where="TOML file", hint="restore it from git")
    return value
