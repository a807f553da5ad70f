"""`patches/upstream.toml`: which upstream release the series is made for, and the hash of every file taken from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from vllm_spark import paths
from vllm_spark.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Base", "FilePin", "Requires", "Upstream", "load"]

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]


class FilePin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of a package index.

    Attributes:
        role: what it is to us, such as "sdist", "wheel" or "nvcc".
        name: its file name on the index.
        sha256: hex digest of its bytes.
        size: its length in bytes.
        machine: the `platform.machine()` that it is for; empty for any.
    """

    role: str
    name: FileName
    sha256: Sha256
    size: Annotated[int, msgspec.Meta(gt=0)]
    machine: str = ""


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The release that the series applies to; `spark` counts our releases on it."""

    project: str
    version: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+\.\d+(rc\d+)?$")]
    spark: Annotated[int, msgspec.Meta(ge=1)]


class Requires(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the base release was built with and for."""

    torch: str
    cuda: str
    python: str
    flashinfer: str


class Upstream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of `upstream.toml`."""

    base: Base
    requires: Requires
    files: tuple[FilePin, ...]

    @property
    def project(self) -> str:
        """The upstream project's name on the index."""
        return self.base.project

    @property
    def version(self) -> str:
        """The upstream release, such as 0.33.0."""
        return self.base.version

    @property
    def spark(self) -> int:
        """Our count on the upstream release."""
        return self.base.spark

    @property
    def vllm_version(self) -> str:
        """The version of the patched vLLM: a local version, which sorts above the plain one and satisfies it."""
        return f"{self.base.version}+spark.{self.base.spark}"

    @property
    def package_version(self) -> str:
        """The version of vllm-spark itself."""
        return f"{self.base.version}.{self.base.spark}"

    def file(self, role: str, machine: str = "") -> FilePin:
        """The pin for `role` on `machine`.

        Raises:
            ConfigError: there is none.
        """
        for pin in self.files:
            if pin.role == role and pin.machine in ("", machine):
                return pin
        wanted = f"{role} for {machine}" if machine else role
        raise ConfigError(f"no pin for the {wanted}", where="patches/upstream.toml", hint="add its name and SHA-256")


def load(path: Path | None = None) -> Upstream:
    """Read the pins; None means those of the checkout.

    Raises:
        ConfigError: the file is missing or does not have the form above; the message names the key.
    """
    path = path or paths.repo_root() / "patches" / "upstream.toml"
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Upstream)
    except FileNotFoundError:
        raise ConfigError("missing", where=str(path), hint="restore it from git") from None
    except msgspec.DecodeError as err:
        raise ConfigError(str(err), where=str(path), hint="compare it with the version in git") from err
