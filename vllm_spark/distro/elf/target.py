"""Targets of CUDA code and the rules by which a device takes them.

Source: CUDA C++ Programming Guide 13.0, "Binary compatibility", "PTX compatibility", "Family-specific targets".
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import NamedTuple

from vllm_spark.errors import ConfigError

__all__ = ["Capability", "Form", "Suffix", "Support", "Target"]

# Compute capabilities that share no binaries with the others of their major number: the embedded parts.
_EMBEDDED = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1)})
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)")


class Capability(NamedTuple):
    """A device's compute capability."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> Capability:
        """Read `12.1`.

        Raises:
            ConfigError: it is not MAJOR.MINOR.
        """
        found = _CAPABILITY.fullmatch(text)
        if found is None:
            raise ConfigError("not a compute capability", where=text, hint="write it as 12.1")
        return cls(int(found[1]), int(found[2]))


class Suffix(enum.Enum):
    """Whether code uses features that later devices need not have."""

    PORTABLE = ""
    ARCH = "a"  # this capability only
    FAMILY = "f"  # this capability and the later ones of its family


class Form(enum.Enum):
    """What an image holds."""

    CUBIN = "cubin"
    PTX = "ptx"
    OTHER = "other"  # link-time intermediate code and whatever a later toolkit adds


class Support(enum.Enum):
    """What a device can do with an image or a kernel, best first."""

    NATIVE = "native"
    JIT = "JIT only"
    ABSENT = "absent"
    UNKNOWN = "unknown"  # a form that we do not know; never treated as dead

    @property
    def loadable(self) -> bool:
        """Whether the device can run it, at once or after compiling it."""
        return self in (Support.NATIVE, Support.JIT)


@dataclass(frozen=True, order=True)
class Target:
    """What code was made for, such as 12.0 with suffix f.

    Attributes:
        number: ten times the major number plus the minor one, as in `sm_120`.
    """

    number: int
    suffix: Suffix = Suffix.PORTABLE

    @property
    def capability(self) -> Capability:
        """The compute capability named."""
        return Capability(*divmod(self.number, 10))

    def __str__(self) -> str:
        return f"{self.number}{self.suffix.value}"

    def runs_on(self, device: Capability, form: Form) -> Support:
        """What `device` can do with code of this target.

        PTX is compiled for the device by its driver. Portable PTX runs on every later device; PTX with a suffix
        is bound like machine code.
        """
        match form:
            case Form.CUBIN:
                return Support.NATIVE if self._binds(device) else Support.ABSENT
            case Form.PTX:
                portable = self.suffix is Suffix.PORTABLE and self.capability <= device
                return Support.JIT if portable or self._binds(device) else Support.ABSENT
            case Form.OTHER:
                return Support.UNKNOWN

    def _binds(self, device: Capability) -> bool:
        own = self.capability
        if own == device:
            return True
        if self.suffix is Suffix.ARCH or own in _EMBEDDED or device in _EMBEDDED:
            return False
        return own.major == device.major and own.minor <= device.minor
