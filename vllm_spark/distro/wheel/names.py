"""Member names and file names of wheels, and the rules for them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SHARED_OBJECT", "WheelName", "check_member_name"]

SHARED_OBJECT = re.compile(r"\.so(\.\d+)*$")  # a member that may hold device code
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_(?P<machine>.+)")
_LINUX = re.compile(r"(?:linux|manylinux\w*?)_(?P<machine>x86_64|aarch64)")


@dataclass(frozen=True)
class WheelName:
    """The parts of a wheel's file name, as written in it."""

    distribution: str
    version: str
    python: str
    abi: str
    platform: str

    @classmethod
    def parse(cls, path: Path) -> WheelName:
        """Read the name of `path`.

        Raises:
            ArtefactError: it is not a wheel's name, or carries a build tag, which no file of ours has.
        """
        try:
            parse_wheel_filename(path.name)
        except InvalidWheelFilename as err:
            raise ArtefactError(
                "not a wheel file name", where=path.name, hint="NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
            ) from err
        parts = path.name.removesuffix(".whl").split("-")
        if len(parts) != 5:
            raise ArtefactError("build tags are not supported", where=path.name)
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.distribution}-{self.version}-{self.python}-{self.abi}-{self.platform}.whl"

    @property
    def dist_info(self) -> str:
        """The folder of the metadata."""
        return f"{self.distribution}-{self.version}.dist-info"

    @property
    def project(self) -> str:
        """The normalised project name."""
        return canonicalize_name(self.distribution)

    @property
    def tags(self) -> list[str]:
        """Every tag that the compressed tag set stands for, sorted."""
        return sorted(
            f"{python}-{abi}-{platform}"
            for python in self.python.split(".")
            for abi in self.abi.split(".")
            for platform in self.platform.split(".")
        )

    @property
    def glibc(self) -> tuple[int, int] | None:
        """The oldest glibc that the platform tags promise to run on; None when one of them promises none."""
        found = [_MANYLINUX.match(platform) for platform in self.platform.split(".")]
        floors = [(int(match[1]), int(match[2])) for match in found if match]
        return min(floors) if len(floors) == len(found) else None

    @property
    def machine(self) -> str:
        """The machine that the first platform tag names, such as `aarch64`; `any` for pure Python."""
        match = _MANYLINUX.match(self.platform) or _LINUX.match(self.platform)
        return match["machine"].split(".")[0] if match else self.platform

    def release(self, version: str, platform: str) -> WheelName:
        """The name of a rewrite with another version and platform tag."""
        return replace(self, version=str(Version(version)), platform=platform)


def check_member_name(name: str) -> str | None:
    """What is wrong with a member's name, None when nothing is: it must stay below the folder of installation."""
    path = PurePosixPath(name)
    if not name or name.startswith("/") or path.is_absolute():
        return "absolute path"
    if ".." in path.parts:
        return "path leaves the tree"
    if "\\" in name or "\0" in name or ":" in path.parts[0]:
        return "path with a backslash, NUL or drive"
    if str(path) != name.removesuffix("/"):
        return "path is not in its plain form"
    return None
