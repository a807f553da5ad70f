"""The rules that a wheel must keep.

Each is a class: an id, a title, and a docstring that says what breaks without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from packaging.utils import canonicalize_name
from packaging.version import Version

from vllm_spark.distro.elf.report import lost_kernels
from vllm_spark.distro.elf.target import Support
from vllm_spark.distro.wheel.record import verify_record
from vllm_spark.distro.wheel.sbom import PATCH_PROPERTY, read_sbom
from vllm_spark.errors import ArtefactError, IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.wheel.expected import ExpectedExtension, ExpectedWheel
    from vllm_spark.distro.wheel.facts import ElfFile, WheelFacts

__all__ = ["RULES", "Case", "Rule"]


@dataclass(frozen=True)
class Case:
    """What the rules look at.

    Attributes:
        patches: names of the patches that the bill of materials must list; None does not ask.
        original: the wheel that this one was made from, None when it is not at hand.
    """

    facts: WheelFacts
    expected: ExpectedWheel
    patches: frozenset[str] | None = None
    original: WheelFacts | None = None


class Rule(ABC):
    """One rule."""

    id: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def check(self, case: Case) -> Iterator[str]:
        """Say what is wrong, one line each; nothing when the rule holds."""


class InnerNames(Rule):
    """The tags in WHEEL and the name and version in METADATA are those of the file name.

    Installers choose a file by its name and believe the inside afterwards; tools that rewrite wheels refuse one that
    contradicts itself.
    """

    id = "W001"
    title = "inner tag, name and version equal the file name's"

    def check(self, case: Case) -> Iterator[str]:
        """Compare them."""
        facts = case.facts
        if list(facts.tags) != facts.name.tags:
            yield f"WHEEL says {', '.join(facts.tags) or 'no tag'}, the file name {', '.join(facts.name.tags)}"
        if canonicalize_name(facts.project) != facts.name.project:
            yield f"METADATA names {facts.project}, the file name {facts.name.distribution}"
        if Version(facts.version) != Version(facts.name.version):
            yield f"METADATA has version {facts.version}, the file name {facts.name.version}"


class RecordVerifies(Rule):
    """Every member is listed in RECORD and has the hash and size that stand there.

    pip does not check this when it installs, so a damaged file would be found by whoever runs it.
    """

    id = "W002"
    title = "RECORD verifies"

    def check(self, case: Case) -> Iterator[str]:
        """Hash everything."""
        try:
            verify_record(case.facts.path)
        except (ArtefactError, IntegrityError) as err:
            yield err.what


class DeviceCode(Rule):
    """Each extension has the device code that build/audit.toml says, and none that the device cannot use.

    A kernel that went missing shows only when it is launched. Where the original wheel is at hand, every kernel that
    had a loadable image there must have one here, by name.
    """

    id = "W003"
    title = "device code as expected, nothing lost, nothing dead"

    def check(self, case: Case) -> Iterator[str]:
        """Compare verdicts and numbers, then names."""
        there = {one.name: one for one in case.facts.elf if one.report.containers}
        for name in sorted({*there, *case.expected.extensions}):
            expected = case.expected.extensions.get(name)
            if name not in there:
                yield f"{name}: expected by build/audit.toml, but not there or without device code (stale entry?)"
            elif expected is None:
                yield f"{name}: has device code, but build/audit.toml does not list it"
            else:
                yield from self._extension(there[name], expected)
        for old in case.original.elf if case.original else ():
            kernels = there[old.name].kernels if old.name in there else {}
            yield from (f"{old.name}: lost {line}" for line in lost_kernels(old.kernels, kernels))

    @staticmethod
    def _extension(found: ElfFile, expected: ExpectedExtension) -> Iterator[str]:
        report = found.report
        expected = expected.after_aot(report.kernels.get(Support.JIT, 0))
        if report.verdict is not expected.verdict:
            yield f"{found.name}: {report.verdict.value if report.verdict else 'nothing'}, not {expected.verdict.value}"
        for support, count in ((Support.NATIVE, expected.native), (Support.JIT, expected.jit)):
            if count is not None and report.kernels.get(support, 0) != count:
                yield f"{found.name}: {report.kernels.get(support, 0)} kernels {support.value}, not {count}"
        if report.unusable:
            images = ", ".join(f"{count} {label}" for label, count in report.unusable.items())
            yield f"{found.name}: carries code that {report.device} cannot use: {images}"


class StableAbi(Rule):
    """Extensions use the stable ABI of torch, and abi3 ones no private name of CPython.

    Such an extension works with later releases of torch and Python; another one breaks at import or, worse, later.
    """

    id = "W004"
    title = "stable ABI"

    def check(self, case: Case) -> Iterator[str]:
        """Look at undefined symbols; an exception that is not needed any more is a violation too."""
        offenders = set()
        for one in case.facts.elf:
            abi = one.report.abi
            private = abi.private_python if ".abi3." in one.name else ()
            if abi.torch_cxx or private:
                offenders.add(one.name)
                if one.name not in case.expected.unstable:
                    symbols = [*abi.torch_cxx, *private]
                    yield f"{one.name}: {len(symbols)} symbols outside the stable ABI, such as {symbols[0]}"
        for name in sorted(case.expected.unstable - offenders):
            yield f"{name}: listed as unstable in build/audit.toml, but it is not (stale entry)"


class GlibcFloor(Rule):
    """No ELF file needs a newer glibc than the platform tag promises.

    The tag is what pip goes by; a file that needs more fails when it is loaded.
    """

    id = "W005"
    title = "glibc floor is the tag's"

    def check(self, case: Case) -> Iterator[str]:
        """Compare version needs with the tag."""
        promised = case.facts.name.glibc
        if promised is None and case.facts.elf:
            yield f"platform tag {case.facts.name.platform} promises no glibc"
        for one in case.facts.elf:
            needed = one.report.abi.glibc
            if promised is not None and needed > promised:
                yield f"{one.name}: needs glibc {needed[0]}.{needed[1]}, the tag says {promised[0]}.{promised[1]}"


class BillOfMaterials(Rule):
    """The SBOM is there, valid, about this wheel, and lists every patch of the series.

    Without it nobody can tell what was changed.
    """

    id = "W006"
    title = "SBOM as build/audit.toml asks, complete"

    def check(self, case: Case) -> Iterator[str]:
        """Validate and compare."""
        data = case.facts.sbom
        if data is None:
            if case.expected.sbom:
                yield "has no sboms/vllm-spark.cdx.json"
            return
        try:
            component = read_sbom(data, "SBOM")["metadata"]["component"]
        except ArtefactError as err:
            yield f"SBOM is {err.what}"
            return
        if (component["name"], component.get("version")) != (case.facts.project, case.facts.version):
            yield f"SBOM is about {component['name']} {component.get('version')}"
        if not any(one.get("hashes") for one in component.get("pedigree", {}).get("ancestors", [])):
            yield "SBOM names no upstream wheel with its hash"
        listed = {
            one["name"].removeprefix(PATCH_PROPERTY)
            for one in component.get("properties", [])
            if one["name"].startswith(PATCH_PROPERTY)
        }
        for name in sorted(listed ^ (listed if case.patches is None else case.patches)):
            yield f"patch {name} is {'in the SBOM but not in the series' if name in listed else 'not in the SBOM'}"


class SizeBudget(Rule):
    """The file is not larger than its budget in build/audit.toml.

    Growth should be somebody's decision.
    """

    id = "W007"
    title = "size within its budget"

    def check(self, case: Case) -> Iterator[str]:
        """Compare, and name what is large."""
        expected = case.expected
        waiting = any(one.report.kernels.get(Support.JIT) for one in case.facts.elf)
        budget = expected.max_size if waiting or expected.max_size_aot is None else expected.max_size_aot
        over = case.facts.size - budget
        if over > 0:
            largest = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in case.facts.largest)
            yield f"{case.facts.size} bytes, {over} over the budget of {budget}; largest: {largest}"


RULES: tuple[Rule, ...] = (
    InnerNames(),
    RecordVerifies(),
    DeviceCode(),
    StableAbi(),
    GlibcFloor(),
    BillOfMaterials(),
    SizeBudget(),
)
