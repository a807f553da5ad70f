"""`build/profiles/*.toml`: what a build is for. Profiles are data; code asks them and never names a machine."""

from __future__ import annotations

from typing import Annotated

import msgspec

from vllm_spark import paths
from vllm_spark.errors import ConfigError

__all__ = ["Profile", "load", "names"]

Version = Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+$")]


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One target of the extension.

    Attributes:
        name: the file's stem.
        machine: `platform.machine()` of the target.
        compute_capability: of the target's GPU, such as "12.1".
        cuda_arch: nvcc's name of the one image that is built, without "sm_", such as "121a".
        toolchain: stem of a file in `build/toolchains`.
        torch_min: oldest torch that the extension loads with.
        glibc: oldest glibc that it loads with.
        python: oldest CPython, as a wheel tag.
    """

    name: str = ""
    machine: Annotated[str, msgspec.Meta(pattern="^(x86_64|aarch64)$")]
    compute_capability: Version
    cuda_arch: Annotated[str, msgspec.Meta(pattern=r"^\d{2,3}[af]?$")]
    toolchain: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9.-]+$")]
    torch_min: Version
    glibc: Version
    python: Annotated[str, msgspec.Meta(pattern=r"^cp3\d+$")]

    @property
    def platform_tag(self) -> str:
        """The wheel's platform tag (PEP 600): the glibc floor is stated, not guessed."""
        return f"manylinux_{self.glibc.replace('.', '_')}_{self.machine}"

    @property
    def wheel_tag(self) -> str:
        """The whole tag of the extension's wheel."""
        return f"{self.python}-abi3-{self.platform_tag}"

    @property
    def torch_target(self) -> str:
        """`TORCH_TARGET_VERSION`: one byte each for major and minor (torch/csrc/stable/version.h, 2.10)."""
        major, minor = (int(part) for part in self.torch_min.split("."))
        return f"0x{major:02x}{minor:02x}{0:012x}ULL"


def names() -> list[str]:
    """The profiles of this checkout."""
    return sorted(path.stem for path in (paths.repo_root() / "build" / "profiles").glob("*.toml"))


def load(name: str) -> Profile:
    """Read a profile by name.

    Raises:
        ConfigError: there is no such profile, or its file does not have the form above.
    """
    if name not in names():
        raise ConfigError("unknown profile", where=name, hint=f"choose one of: {', '.join(names())}")
    path = paths.repo_root() / "build" / "profiles" / f"{name}.toml"
    try:
        profile = msgspec.toml.decode(path.read_bytes(), type=Profile)
    except msgspec.DecodeError as err:
        raise ConfigError(str(err), where=str(path), hint="compare it with the version in git") from err
    return msgspec.structs.replace(profile, name=name)
