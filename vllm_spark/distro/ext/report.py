"""What the compiler made of each kernel, and whether it can run on a GB10: nothing here needs a GPU.

Registers, stack and shared memory come from the image itself, the instruction mix from its disassembly. A launch is
checked against the limits of the device; a kernel that could not be launched ends the run with an error.
"""

from __future__ import annotations

import io
import re
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elftools.elf.elffile import ELFFile

from vllm_spark import proc
from vllm_spark.errors import ArtefactError, RuleError

if TYPE_CHECKING:
    from vllm_spark.distro.ext.toolchain import Toolchain

__all__ = ["GB10", "Device", "Kernel", "check", "rows", "shared_at_launch", "survey"]


@dataclass(frozen=True)
class Device:
    """Limits of a GPU, per SM where not said otherwise (CUDA C++ Programming Guide 13.0, compute capabilities)."""

    name: str
    sms: int
    registers: int
    threads: int
    shared: int
    shared_per_block: int
    gigabytes_per_second: float
    gigahertz: float
    latency_ns: float  # of a read that misses L2; an assumption


GB10 = Device("GB10", 48, 65536, 1536, 100 << 10, 99 << 10, 273.0, 2.4, 800.0)
_RESERVED = 1 << 10  # shared memory that the driver takes of each block
# Dynamic shared memory is decided at the launch: constants of csrc/include/{w4_tile,quantize4}.cuh, which a test reads.
_SHARED = (
    (r"9w4_kernelI", 256 * 256),
    (r"8quantizeI.*Nf4Scale.*ELb1E", (96 + 192) * 256),
    (r"8quantizeI.*(Mxfp4|Nvfp4)Scale.*ELb1E", (96 + 128) * 256),
    (r"8quantizeI.*ELb0E", 96 * 256),
)
_MIX = {
    "memory": ("LDG", "STG", "RED", "ATOMG", "LDGSTS"),
    "shared": ("LDS", "STS"),
    "matrix": ("HMMA",),
    "spill": ("LDL", "STL"),
}
_WEIGHTS = 16 * 16  # that one m16n8k16 takes


@dataclass(frozen=True)
class Kernel:
    """One kernel of one image."""

    name: str
    registers: int
    stack: int
    shared: int  # bytes per block, static and dynamic
    threads: int
    mix: dict[str, int]
    loop: dict[str, int]  # the same of the loop with most matrix instructions

    def blocks(self, device: Device) -> int:
        """Blocks that an SM holds at once; 0 when not one fits."""
        warps = -(-self.threads // 32)
        per_warp = -(-self.registers * 32 // 256) * 256
        if self.threads > 1024 or self.shared > device.shared_per_block:
            return 0
        by_shared = device.shared // (self.shared + _RESERVED)
        return min(device.registers // (per_warp * warps), device.threads // self.threads, by_shared)

    def weights_per_second(self, device: Device, columns: int) -> float:
        """4-bit weights that the instructions of the main loop let through; 0 where there is no such loop.

        Args:
            columns: matrix instructions per 16 x 16 weights.
        """
        if not self.loop["matrix"]:
            return 0.0
        weights = self.loop["matrix"] / columns * _WEIGHTS
        return device.sms * 4 * device.gigahertz * 1e9 / self.loop["all"] * weights


def shared_at_launch(name: str) -> int:
    """Dynamic shared memory with which a kernel is launched, by its mangled name."""
    return next((size for pattern, size in _SHARED if re.search(pattern, name)), 0)


def survey(library: Path, tools: Toolchain) -> list[Kernel]:
    """Every kernel of a compiled extension.

    Raises:
        ArtefactError: it has no image.
        ProcessError: it is no such library.
    """
    with tempfile.TemporaryDirectory() as folder:
        proc.run([tools.cuobjdump, "-xelf", "all", library], cwd=Path(folder), env=tools.env)
        images = sorted(Path(folder).glob("*.cubin"))
        if not images:
            raise ArtefactError("no image in it", where=str(library))
        found = [kernel for image in images for kernel in _kernels(image, tools)]
    return sorted(found, key=lambda kernel: kernel.name)


def _kernels(image: Path, tools: Toolchain) -> list[Kernel]:
    usage = proc.run([tools.cuobjdump, "-res-usage", image], env=tools.env).output
    threads = _threads(image.read_bytes())
    code = _functions(proc.run([tools.cuobjdump, "-sass", image], env=tools.env).text)
    found = []
    for name, registers, stack, shared in re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage):
        own = max(int(shared) - _RESERVED, 0)  # the image counts what the driver takes, too
        total = own + shared_at_launch(name)
        lines = code.get(name, [])
        kernel = Kernel(name, int(registers), int(stack), total, threads.get(name, 1024), _count(lines), _loop(lines))
        found.append(kernel)
    return found


def _threads(image: bytes) -> dict[str, int]:
    """Threads per block that each kernel was compiled for: attribute 5 of `.nv.info.<kernel>`."""
    found: dict[str, int] = {}
    for section in ELFFile(io.BytesIO(image)).iter_sections():
        if not section.name.startswith(".nv.info."):
            continue
        data, at = section.data(), 0
        while at + 4 <= len(data):
            form, attribute, value = data[at], data[at + 1], int.from_bytes(data[at + 2 : at + 4], "little")
            at += 4
            if form == 4:  # the value is the size of what follows
                if attribute == 5:
                    sizes = [int.from_bytes(data[at + i : at + i + 4], "little") for i in (0, 4, 8)]
                    found[section.name.removeprefix(".nv.info.")] = sizes[0] * sizes[1] * sizes[2]
                at += value
    return found


def _functions(text: str) -> dict[str, list[tuple[int, str]]]:
    """Address and instruction of every line, by function."""
    found: dict[str, list[tuple[int, str]]] = {}
    lines: list[tuple[int, str]] = []
    for line in text.splitlines():
        if match := re.match(r"\s*Function : (\S+)", line):
            lines = found.setdefault(match[1], [])
        elif match := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", line):
            lines.append((int(match[1], 16), match[2]))
    return found


def _count(lines: list[tuple[int, str]]) -> dict[str, int]:
    names = Counter(re.sub(r"^@!?U?P\w+ ", "", text).split(".")[0].split()[0] for _, text in lines)
    mix = {kind: sum(names[name] for name in members) for kind, members in _MIX.items()}
    return {"all": sum(names.values()), **mix}


def _loop(lines: list[tuple[int, str]]) -> dict[str, int]:
    """The mix of the innermost loop with the most matrix instructions."""
    best: list[tuple[int, str]] = []
    for address, text in lines:
        target = re.search(r"\bBRA(?:\.\w+)* (?:\w+, )?(?:`\(.*\)|0x([0-9a-f]+))", text)
        if target and target[1] and int(target[1], 16) < address:
            body = [line for line in lines if int(target[1], 16) <= line[0] <= address]
            matrix = _count(body)["matrix"]
            if matrix and (not best or (matrix, -len(body)) > (_count(best)["matrix"], -len(best))):
                best = body
    return _count(best)


def check(kernels: list[Kernel], device: Device) -> None:
    """Refuse kernels that `device` cannot launch.

    Raises:
        RuleError: there are some; each is named with what it asks for.
    """
    bad = [kernel for kernel in kernels if kernel.blocks(device) == 0]
    if bad:
        said = "; ".join(f"{k.name}: {k.threads} threads, {k.registers} registers, {k.shared} B shared" for k in bad)
        raise RuleError(f"not launchable on {device.name}: {said}", hint="use less of it, or smaller blocks")


def rows(kernels: list[Kernel], device: Device) -> list[dict[str, object]]:
    """One record per kernel: what it is, and what of `device` it can use."""
    found = []
    for kernel in kernels:
        sizes = re.search(r"w4_kernelI.*Li(\d+)ELi(\d+)ELi(\d+)ELi\d+EE", kernel.name)
        record: dict[str, object] = {**asdict(kernel), "blocks_per_sm": kernel.blocks(device)}
        if sizes:
            tiles, columns, depth = (int(size) for size in sizes.groups())
            flying = kernel.blocks(device) * kernel.threads // 32 * tiles * depth * 512
            by_latency = device.sms * flying / device.latency_ns
            by_issue = kernel.weights_per_second(device, columns) / 2e9
            record["gigabytes_per_second"] = round(min(by_latency, by_issue, device.gigabytes_per_second), 1)
            record["limits"] = {"latency": round(by_latency, 1), "instructions": round(by_issue, 1)}
        found.append(record)
    return found
