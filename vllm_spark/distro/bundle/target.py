"""For which machine and Python something is resolved, in uv's words and in wheel tags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from packaging.tags import Tag

__all__ = ["Target"]

_OLDEST_GLIBC = 17  # 2.17, the floor of every manylinux of these machines
_PLATFORMS = ("aarch64", "x86_64")


@dataclass(frozen=True)
class Target:
    """A machine and its Python.

    Attributes:
        python: such as "3.12".
        platform: `platform.machine()`.
        glibc: the C library's version; DGX OS 7 has 2.39.
    """

    python: str = "3.12"
    platform: str = "aarch64"
    glibc: str = "2.39"

    def __post_init__(self) -> None:
        """Refuse what nothing can be resolved for.

        Raises:
            ConfigError: it names the value.
        """
        for value, major in ((self.python, "3"), (self.glibc, "2")):
            first, _, minor = value.partition(".")
            if first != major or not minor.isdecimal():
                raise ConfigError(f"{value!r} is no version of two numbers", hint="write --python 3.12 --glibc 2.39")
        if self.platform not in _PLATFORMS:
            raise ConfigError(f"unknown platform {self.platform!r}", hint=f"choose one of: {', '.join(_PLATFORMS)}")

    @property
    def uv(self) -> list[str]:
        """Options of `uv pip compile`."""
        platform = f"{self.platform}-manylinux_{self.glibc.replace('.', '_')}"
        return ["--python-platform", platform, "--python-version", self.python]

    def tags(self) -> list[Tag]:
        """What the target's pip accepts, best first."""
        newest = int(self.glibc.partition(".")[2])
        platforms = [f"manylinux_2_{minor}_{self.platform}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
        platforms += [f"manylinux2014_{self.platform}", f"linux_{self.platform}"]
        version = (3, int(self.python.partition(".")[2]))
        interpreter = f"cp3{version[1]}"
        return [*cpython_tags(version, platforms=platforms), *compatible_tags(version, interpreter, platforms)]

    def best(self, names: list[str]) -> str | None:
        """The wheel among `names` that the target's pip would take; None where it takes none."""
        rank = {tag: number for number, tag in enumerate(self.tags())}
        ranked = [
            (min((rank[tag] for tag in parse_wheel_filename(name)[3] if tag in rank), default=-1), name)
            for name in names
        ]
        return min((pair for pair in ranked if pair[0] >= 0), default=(0, None))[1]
