"""Machine code from the cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm_spark import console
from vllm_spark.distro.aot.program import read_program
from vllm_spark.distro.aot.splice import Absent, State
from vllm_spark.distro.aot.store import Store
from vllm_spark.errors import ArtefactError, IntegrityError

if TYPE_CHECKING:
    from vllm_spark.distro.aot.assembler import Assembler
    from vllm_spark.distro.aot.program import Program
    from vllm_spark.distro.elf.target import Capability, Target

__all__ = ["CacheSupply", "open_supply"]


@dataclass
class CacheSupply:
    """Finds compiled images in the cache; what ptxas refused in this run is remembered with its reason."""

    assembler: Assembler
    store: Store
    keep_ptx: bool = False
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def device(self) -> Capability:
        """What the images are for."""
        return self.assembler.device

    @property
    def target(self) -> Target:
        """The same, as ptxas is told."""
        return self.assembler.target

    def find(self, ptx: bytes) -> Program | Absent:
        """The compiled image of one PTX module; a damaged one is named, and counts as missing."""
        key = self.assembler.key(ptx)
        if key in self.refused:
            return Absent(State.KEPT, f"ptxas {self.assembler.version}: {self.refused[key]}")
        try:
            fat_binary = self.store.load(key)
            if fat_binary is not None:
                return read_program(fat_binary, self.target, key)
        except (IntegrityError, ArtefactError) as err:
            console.warn(str(err))
            return Absent(State.MISSING, "its cache entry is damaged")
        return Absent(State.MISSING)

    def has(self, ptx: bytes) -> bool:
        """Whether a sound image is stored; a damaged one is removed."""
        found = self.find(ptx)
        if isinstance(found, Absent) and found.reason:
            self.store.remove(self.assembler.key(ptx))
        return not isinstance(found, Absent)


def open_supply(assembler: Assembler, *, keep_ptx: bool = False) -> CacheSupply:
    """The user's cache of what `assembler` makes."""
    return CacheSupply(assembler, Store.of(assembler), keep_ptx)
