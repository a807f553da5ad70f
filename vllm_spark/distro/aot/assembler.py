"""From PTX to a fat binary with machine code, by the pinned tools, and looked at by three readers before it is used.

`fatbinary --compress-mode=size` compresses with zstd, as nvcc does by default for PTX only. It also copies the
attributes that devices from 10.0 on want out of the cubin into the image's header, which is why it makes the header
and we do not.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import proc
from vllm_spark.distro.aot.program import check_same, read_program
from vllm_spark.distro.aot.verify import disassembled_kernels
from vllm_spark.distro.elf.kernels import ptx_kernels
from vllm_spark.distro.elf.target import Capability, Target
from vllm_spark.errors import ArtefactError, ProcessError, ToolMissing

if TYPE_CHECKING:
    from vllm_spark.distro.ext.toolchain import Toolchain

__all__ = ["Assembler", "Refused"]

_FORM = "1"  # raise it when a cached image must be made anew although PTX, ptxas and flags are the same
_RELEASE = re.compile(r"\bV(\d+\.\d+\.\d+)\b")
_TIMEOUT = 3600.0  # seconds; the slowest image of vLLM 0.33.0 takes about one minute on an idle core


class Refused(Exception):
    """ptxas refuses an image; the argument is its reason, one line."""


@dataclass(frozen=True)
class Assembler:
    """ptxas for one device.

    Attributes:
        version: of ptxas, such as 13.0.88.
    """

    tools: Toolchain
    device: Capability
    version: str

    @classmethod
    def of(cls, tools: Toolchain) -> Assembler:
        """The assembler of `tools`, for the device of their profile.

        Raises:
            ToolMissing: ptxas does not say what it is.
        """
        found = _RELEASE.search(proc.run([tools.ptxas, "--version"]).text)
        if found is None:
            raise ToolMissing("says no version", where=str(tools.ptxas), hint="check build/toolchains")
        return cls(tools, Capability.parse(tools.profile.compute_capability), found[1])

    @property
    def target(self) -> Target:
        """What is compiled for: the device, without suffix, for PTX that any later device could take needs none."""
        return Target(self.device.major * 10 + self.device.minor)

    @property
    def flags(self) -> tuple[str, ...]:
        """What ptxas is told beside the files."""
        return (f"-arch=sm_{self.target}",)

    def key(self, ptx: bytes) -> str:
        """The name of the result in the cache: SHA-256 over PTX, version of ptxas, and flags."""
        total = hashlib.sha256("\0".join((_FORM, self.version, *self.flags, "")).encode())
        total.update(ptx)
        return total.hexdigest()

    def assemble(self, ptx: bytes) -> bytes:
        """Compile one image.

        Returns:
            A fat binary with one cubin.

        Raises:
            Refused: ptxas does not accept it: newer than ptxas, unresolved symbols, too much shared memory, …
            ProcessError: a tool was killed, or refuses what ptxas made.
            ArtefactError: the tools and our reader disagree about the result.
        """
        with tempfile.TemporaryDirectory(prefix="vllm-spark-aot-") as name:
            folder = Path(name)
            (folder / "image.ptx").write_bytes(ptx)
            done = proc.run(
                [self.tools.ptxas, *self.flags, "image.ptx", "-o", "image.cubin"],
                cwd=folder,
                check=False,
                timeout=_TIMEOUT,
            )
            if done.status < 0:  # killed, which says nothing about the image
                raise ProcessError(["ptxas", *self.flags], done.status, done.output, hint="free memory, run again")
            if done.status != 0:
                raise Refused(_reason(done.output))
            cubin = (folder / "image.cubin").read_bytes()
            check_same(ptx, cubin, self.target, "ptxas")
            return self._pack(folder, ptx, cubin)

    def _pack(self, folder: Path, ptx: bytes, cubin: bytes) -> bytes:
        image = f"--image3=kind=elf,sm={self.target},file=image.cubin"
        proc.run(
            [self.tools.fatbinary, "-64", "--create=image.fatbin", "--compress-mode=size", image],
            cwd=folder,
            env=self.tools.env,
        )
        fat_binary = (folder / "image.fatbin").read_bytes()
        if read_program(fat_binary, self.target, "fatbinary").cubin != cubin:
            raise ArtefactError("does not hold what ptxas made", where="fatbinary")
        self._read_back(folder, ptx, cubin)
        return fat_binary

    def _read_back(self, folder: Path, ptx: bytes, cubin: bytes) -> None:
        """NVIDIA's own readers must take it, and find the same."""
        (folder / "extracted").mkdir()
        proc.run(
            [self.tools.cuobjdump, "--extract-elf", "all", folder / "image.fatbin"],
            cwd=folder / "extracted",
            env=self.tools.env,
        )
        if [path.read_bytes() for path in (folder / "extracted").iterdir()] != [cubin]:
            raise ArtefactError("does not extract what ptxas made", where="cuobjdump")
        missing = sorted(set(ptx_kernels(ptx)) - disassembled_kernels(folder / "image.cubin", self.tools))
        if missing:
            raise ArtefactError(f"shows no code of {missing[0]}", where="nvdisasm")


def _reason(output: str) -> str:
    """The line of ptxas that says why, without the name of our file."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    line = next((line for line in lines if re.search(r"\b(fatal|error)\b", line)), lines[0] if lines else "no reason")
    return re.sub(r"^ptxas\s+(?:image\.ptx, line \d+;\s*)?(?:(?:fatal|error)\s*:\s*)?", "", line)
