"""The release's step `aot`: machine code for what the device's driver would have to compile."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.distro.aot.assembler import Assembler
from vllm_spark.distro.aot.fill import fill_from_wheel
from vllm_spark.distro.aot.splice import State
from vllm_spark.distro.aot.summary import open_ends
from vllm_spark.distro.aot.supply import open_supply
from vllm_spark.distro.aot.verify import verify_wheel
from vllm_spark.distro.ext import toolchain
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.aot.supply import CacheSupply
    from vllm_spark.distro.profile import Profile
    from vllm_spark.distro.wheel.repack import Repacked

__all__ = ["Aot", "check", "supply_for"]


class Aot(enum.Enum):
    """How far to go."""

    OFF = "off"
    CACHED = "cached"  # use what was compiled before, compile nothing
    ALL = "all"


def supply_for(mode: Aot, profile: Profile, official: Path) -> CacheSupply | None:
    """Where `repack` finds machine code; with `ALL`, everything is compiled first.

    Raises:
        ToolMissing, ProcessError, ResourceError, ArtefactError: from the tools and the cache.
    """
    if mode is Aot.OFF:
        return None
    supply = open_supply(Assembler.of(toolchain.ensure(profile)))
    if mode is Aot.ALL:
        done = fill_from_wheel(supply, official)
        console.say(f"  {done.present} images were in the cache, {done.compiled} compiled, {done.refused} refused")
    return supply


def check(mode: Aot, repacked: Repacked, supply: CacheSupply | None) -> None:
    """Compare our reader with NVIDIA's where code was compiled, and say what the driver still has to compile.

    Raises:
        ArtefactError: readers disagree, or `ALL` was asked for and an image is missing.
        ProcessError: a tool does not take a file.
    """
    if supply is None:
        return
    changed = {image.extension for image in repacked.images if image.state is State.COMPILED}
    for _ in verify_wheel(repacked.path, supply.target, supply.assembler.tools, names=changed):
        pass
    left = open_ends(repacked.images)
    for line in left:
        console.say(f"  {line}")
    missing = [image for image in repacked.images if image.state is State.MISSING]
    if missing and mode is Aot.ALL:
        what = f"{len(missing)} images were compiled, but are not in the cache"
        raise ArtefactError(what, where=str(supply.store.folder), hint="run again; see whether something empties it")
    if missing:
        console.say("  make release AOT=1 compiles them once; see docs/aot.md")
