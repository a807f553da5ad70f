"""What happens to the device code of one shared object while its wheel is rewritten."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm_spark.distro.aot.splice import Image, Splice, check_spliced, splice
from vllm_spark.distro.elf.blank import Blanking, check_blanked, plan_blanking
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import EditedSource

if TYPE_CHECKING:
    from vllm_spark.distro.aot.splice import Supply
    from vllm_spark.distro.elf.fatbin import Container
    from vllm_spark.distro.elf.source import FileSource
    from vllm_spark.distro.elf.target import Capability

__all__ = ["BlankedExtension", "DeviceCode"]


@dataclass(frozen=True)
class BlankedExtension:
    """A shared object that lost images, and what they were."""

    name: str
    blanking: Blanking


@dataclass
class DeviceCode:
    """What is to be done to shared objects, and what was done."""

    keep_for: Capability | None
    compiled: Supply | None
    blanked: list[BlankedExtension] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)

    @property
    def wanted(self) -> bool:
        """Whether anything is to be done at all."""
        return self.keep_for is not None or self.compiled is not None

    def rewrite(self, source: FileSource) -> EditedSource | None:
        """`source` with its device code exchanged and thinned out, and checked; None when nothing changes.

        Raises:
            ArtefactError: it is malformed, or a check fails.
        """
        before = read_shared_object(source).containers
        native = splice(source, before, self.compiled) if self.compiled else None
        replaced = native.programs if native else {}
        others = [one for one in before if one.index not in replaced]
        blanking = plan_blanking(others, self.keep_for) if self.keep_for else None
        self.images += native.images if native else ()
        if blanking and blanking.edits:
            self.blanked.append(BlankedExtension(source.name, blanking))
        edits = (*(native.edits if native else ()), *(blanking.edits if blanking else ()))
        if not edits:
            return None
        result = EditedSource(source, edits)
        self._check(before, source, native, result)
        return result

    def _check(
        self, before: tuple[Container, ...], source: FileSource, native: Splice | None, result: EditedSource
    ) -> None:
        after = read_shared_object(result).containers
        if self.compiled and native:
            check_spliced(before, source, after, result, native, self.compiled)
        if self.keep_for:
            rewritten = native.programs if native else ()
            check_blanked(before, source, after, result, self.keep_for, rewritten=rewritten)
