"""What a release was built with and for, read from its text, and how that differs from what is recorded."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

import msgspec

from vllm_spark.distro.upstream.pins import Requires
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_spark.distro.rebase.merge import Bench
    from vllm_spark.distro.upstream.pins import FilePin, Upstream

__all__ = ["Finding", "look", "read_requires"]

_EXACT = r"^{name} *== *([\w.+!-]+)"
_CUDA = re.compile(r"VLLM_MAIN_CUDA_VERSION: str = \"([\d.]+)\"")
_HINTS = {
    "torch": "the extension's torch_target and the test environment name it: build/profiles, build/constraints",
    "cuda": "the toolchain and the nvidia-* pins of pyproject.toml must be of this CUDA: build/toolchains",
    "python": "requires-python of pyproject.toml and the extension's ABI tag must cover it",
    "flashinfer": "its JIT compiles on the device: check the image and the self-test with it",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that changed, which our wheels may have to follow."""

    what: str
    old: str
    new: str
    follow: str


def read_requires(bench: Bench, tree: str) -> Requires:
    """The pins of a release.

    Raises:
        ArtefactError: a file or a line that has always been there is not; the message names it.
    """
    project = tomllib.loads(_text(bench, tree, "pyproject.toml"))
    python = project.get("project", {}).get("requires-python")
    if not isinstance(python, str):
        raise _missing("pyproject.toml", "requires-python")
    cuda = _CUDA.search(_text(bench, tree, "vllm/envs.py"))
    if cuda is None:
        raise _missing("vllm/envs.py", "the default of VLLM_MAIN_CUDA_VERSION")
    wanted = _text(bench, tree, "requirements/cuda.txt")
    return Requires(_exact(wanted, "torch"), cuda[1], python, _exact(wanted, "flashinfer-python"))


def look(
    upstream: Upstream, bench: Bench, tree: str, files: Sequence[FilePin] | None
) -> tuple[Requires | None, tuple[Finding, ...]]:
    """What our wheels must follow; what cannot be read is a finding too, and then there are no pins.

    Args:
        upstream: the pins of the old release.
        bench: where the new release is.
        tree: its commit.
        files: its files on the index; None when the index was not asked.
    """
    try:
        new = read_requires(bench, tree)
    except ArtefactError as err:
        lost = Finding(what="requirements", old="read", new=f"not readable: {err.where}: {err.what}", follow=err.hint)
        return None, (lost, *_tags_of(upstream, files))
    old, now = msgspec.structs.asdict(upstream.requires), msgspec.structs.asdict(new)
    changed = [Finding(what=key, old=old[key], new=now[key], follow=_HINTS[key]) for key in old if old[key] != now[key]]
    return new, (*changed, *_tags_of(upstream, files))


def _tags_of(upstream: Upstream, files: Sequence[FilePin] | None) -> list[Finding]:
    if files is None:
        return []
    tags = {pin.machine: _tags(pin.name) for pin in upstream.files if pin.role == "wheel"}
    theirs = {pin.machine: _tags(pin.name) for pin in files if pin.role == "wheel"}
    follow = "the repacked wheel takes its tags from this name: check build/audit.toml and the floor of glibc"
    pairs = [(machine, tag, theirs.get(machine, "none on the index")) for machine, tag in tags.items()]
    return [
        Finding(what=f"wheel tags on {machine}", old=tag, new=now, follow=follow)
        for machine, tag, now in pairs
        if now != tag
    ]


def _tags(name: str) -> str:
    return "-".join(name.removesuffix(".whl").split("-")[-3:])


def _text(bench: Bench, tree: str, path: str) -> str:
    data = bench.blob(tree, path)
    if data is None:
        raise _missing(path, "the file")
    return data.decode()


def _exact(text: str, name: str) -> str:
    found = re.search(_EXACT.format(name=re.escape(name)), text, re.MULTILINE)
    if found is None:
        raise _missing("requirements/cuda.txt", f"an exact pin of {name}")
    return found[1]


def _missing(path: str, what: str) -> ArtefactError:
    hint = "see where upstream keeps it now, and teach vllm_spark/distro/rebase/requirements.py"
    return ArtefactError(f"the new release lacks {what}", where=path, hint=hint)
