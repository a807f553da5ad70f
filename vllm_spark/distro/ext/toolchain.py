"""The CUDA compiler, composed of pinned wheels, and the C++ compiler that it drives.

One tree per toolchain file and build machine, in the cache:

    bin/ include/ lib/ nvvm/    what runs here; nvcc finds the rest relative to itself
    target/<machine>/lib/       the CUDA runtime to link with, for each machine that a profile can name
    torch/include/              the headers of torch's stable ABI (made on first use of `torch_include`)
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec

from vllm_spark import console, paths, proc
from vllm_spark.distro.ext import compiler
from vllm_spark.distro.ext.unpack import unpack
from vllm_spark.distro.upstream.fetch import fetch
from vllm_spark.distro.upstream.pins import FilePin
from vllm_spark.errors import ConfigError, ToolMissing

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.profile import Profile

__all__ = ["Toolchain", "ensure"]

_LAYOUT = b"1"  # raise it when the tree below changes its form
_PREFIX = "nvidia/cu13/"
# Headers that an extension of the stable ABI may include; the rest of torch's would tie it to one release.
_STABLE = re.compile(r"torch/(include/torch/(?:csrc/stable|csrc/inductor/aoti_torch|headeronly)/.+\.h)")


class _Pin(FilePin, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pinned file that also says which project of the index has it."""

    project: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]+$")]


class _Pins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    files: tuple[_Pin, ...]


@dataclass(frozen=True)
class Toolchain:
    """What compiles for one profile on this machine; made by `ensure`."""

    root: Path
    profile: Profile
    pins: tuple[_Pin, ...]

    @property
    def nvcc(self) -> Path:
        """The CUDA compiler driver."""
        return self.root / "bin" / "nvcc"

    @property
    def ptxas(self) -> Path:
        """The PTX assembler."""
        return self.root / "bin" / "ptxas"

    @property
    def fatbinary(self) -> Path:
        """Packs images into one fat binary."""
        return self.root / "bin" / "fatbinary"

    @property
    def cuobjdump(self) -> Path:
        """Lists and extracts images; `-sass` needs `env`, for it calls nvdisasm."""
        return self.root / "bin" / "cuobjdump"

    @property
    def nvdisasm(self) -> Path:
        """Disassembles one image."""
        return self.root / "bin" / "nvdisasm"

    @property
    def include(self) -> Path:
        """The CUDA headers."""
        return self.root / "include"

    @property
    def target_lib(self) -> Path:
        """The CUDA runtime libraries of the target machine."""
        return self.root / "target" / self.profile.machine / "lib"

    @property
    def env(self) -> dict[str, str]:
        """This process's environment with the tools first on PATH."""
        return {**os.environ, "PATH": f"{self.root / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}

    def host_compiler(self) -> Path:
        """The C++ compiler for the target machine; nvcc takes it as `-ccbin`.

        Raises:
            ToolMissing: it is not installed and may not be.
        """
        return compiler.find(self.profile.machine)

    def torch_include(self) -> Path:
        """The headers of torch's stable ABI, taken from the pinned wheel on first use.

        Raises:
            IntegrityError: the wheel is not what is pinned.
        """
        target = self.root / "torch"
        with paths.lock(self.root.parent / f".{self.root.name}.torch.lock", wait=True):
            if not target.is_dir():
                pin = next(pin for pin in self.pins if pin.role == "torch-headers")
                with paths.atomic_dir(target) as fresh:
                    unpack(fetch(pin.project, pin), fresh, _stable_header)
        return target / "include"


def ensure(profile: Profile) -> Toolchain:
    """The toolchain for `profile`, fetched and composed if the cache has none; processes take turns.

    Raises:
        ConfigError: the toolchain file is missing or malformed, or pins nothing for this machine.
        IntegrityError: a wheel is not what is pinned.
        ToolMissing: the composed nvcc does not run.
    """
    path = paths.repo_root() / "build" / "toolchains" / f"{profile.toolchain}.toml"
    pins = _load(path)
    here = platform.machine()
    tools = [pin for pin in pins if pin.machine == here]
    runtimes = [pin for pin in pins if pin.role == "runtime"]
    if not tools or profile.machine not in {pin.machine for pin in runtimes}:
        raise ConfigError(f"pins no wheels for {here} or {profile.machine}", where=str(path), hint="add them")
    used = [pin for pin in pins if pin.machine == here or pin.role in ("runtime", "torch-headers")]
    digest = hashlib.sha256(_LAYOUT + "".join(pin.sha256 for pin in used).encode()).hexdigest()[:16]
    root = paths.cache_dir("toolchain") / f"{profile.toolchain}-{here}-{digest}"
    with paths.lock(root.parent / f".{root.name}.lock", wait=True):
        if not root.is_dir():
            _compose(root, tools, runtimes)
    return Toolchain(root, profile, pins)


def _load(path: Path) -> tuple[_Pin, ...]:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_Pins).files
    except FileNotFoundError:
        raise ConfigError("missing", where=str(path), hint="name a file of build/toolchains in the profile") from None
    except msgspec.DecodeError as err:
        raise ConfigError(str(err), where=str(path), hint="compare it with the version in git") from err


def _compose(root: Path, tools: list[_Pin], runtimes: list[_Pin]) -> None:
    wheels = {pin: fetch(pin.project, pin) for pin in dict.fromkeys((*tools, *runtimes))}
    with console.step(f"composing the toolchain in {root}"), paths.atomic_dir(root) as fresh:
        for pin in tools:
            unpack(wheels[pin], fresh, lambda name: name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else None)
        for pin in runtimes:
            unpack(wheels[pin], fresh / "target" / pin.machine, _library)
        _prove(fresh / "bin" / "nvcc")


def _library(name: str) -> str | None:
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX + "lib/") else None


def _stable_header(name: str) -> str | None:
    found = _STABLE.fullmatch(name)
    return found[1] if found else None


def _prove(nvcc: Path) -> None:
    """A tree whose compiler does not start must never get its final name."""
    hint = "check the nvcc pin in build/toolchains, and that this machine's glibc is 2.17 or newer"
    if not nvcc.is_file():
        raise ToolMissing("the pinned wheels hold no nvcc", where=nvcc.name, hint=hint)
    try:
        said = proc.run([nvcc, "--version"], check=False)
    except OSError as err:  # a program for another machine
        raise ToolMissing(f"does not run here: {err.strerror}", where=nvcc.name, hint=hint) from err
    if said.status != 0 or "Cuda compilation tools" not in said.text:
        last = (said.output.strip().splitlines() or [f"exit status {said.status}"])[-1]
        raise ToolMissing(f"does not run here: {last}", where=nvcc.name, hint=hint)
