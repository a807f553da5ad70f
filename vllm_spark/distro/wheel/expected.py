"""What the audit expects of each wheel: `build/audit.toml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from vllm_spark.distro.elf.target import Capability, Support
from vllm_spark.errors import ConfigError
from vllm_spark.paths import repo_root

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.wheel.names import WheelName

__all__ = ["ExpectedExtension", "ExpectedWheel", "expected_for", "read_expectations"]

_Count = Annotated[int, msgspec.Meta(ge=0)]


class ExpectedExtension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shared object with device code.

    Attributes:
        verdict: the best that the device can do with any kernel of it.
        native, jit: numbers of kernels that run at once, and after compiling their PTX; None leaves them open.
        aot: kernels of the second kind may have been compiled ahead of time: then they count as native.
    """

    verdict: Support
    native: _Count | None = None
    jit: _Count | None = None
    aot: bool = False

    def after_aot(self, jit: int) -> ExpectedExtension:
        """What is expected where `jit` kernels are left to the driver; itself where that is no outcome of the step."""
        if not self.aot or self.native is None or self.jit is None or not 0 <= jit < self.jit:
            return self
        compiled = self.native + self.jit - jit
        return msgspec.structs.replace(self, verdict=Support.NATIVE, native=compiled, jit=jit)


class ExpectedWheel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One wheel, by project and machine.

    Attributes:
        device: compute capability that it is made for, such as `12.1`.
        max_size: bytes of the file.
        max_size_aot: the same where no kernel is left to the driver's compiler; None means `max_size`.
        sbom: whether it carries our bill of materials.
        unstable: shared objects that may use libtorch's C++ symbols or CPython's private names.
        extensions: shared objects with device code, by member name.
    """

    project: str
    machine: str
    device: str
    max_size: _Count
    max_size_aot: _Count | None = None
    sbom: bool = False
    unstable: frozenset[str] = frozenset()
    extensions: dict[str, ExpectedExtension] = {}

    @property
    def capability(self) -> Capability:
        """`device` as numbers."""
        return Capability.parse(self.device)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    wheels: list[ExpectedWheel]


def read_expectations(path: Path | None = None) -> list[ExpectedWheel]:
    """Read `path`, by default `build/audit.toml` of the checkout.

    Raises:
        ConfigError: it is missing or malformed.
    """
    path = path or repo_root() / "build" / "audit.toml"
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_File).wheels
    except FileNotFoundError:
        raise ConfigError("no such file", where=str(path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise ConfigError(f"malformed ({err})", where=str(path)) from err


def expected_for(name: WheelName, expectations: list[ExpectedWheel]) -> ExpectedWheel:
    """The entry for the wheel called `name`.

    Raises:
        ConfigError: there is none, or more than one.
    """
    found = [one for one in expectations if (one.project, one.machine) == (name.project, name.machine)]
    if len(found) != 1:
        raise ConfigError(
            f"{len(found)} entries for {name.project} on {name.machine}",
            where="build/audit.toml",
            hint="describe the wheel there once",
        )
    return found[0]
