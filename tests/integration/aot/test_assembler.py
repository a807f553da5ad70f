"""The pinned tools at work on small PTX."""

import dataclasses
import re
from pathlib import Path

import pytest

from vllm_spark import proc
from vllm_spark.distro import profile
from vllm_spark.distro.aot.assembler import Assembler, Refused
from vllm_spark.distro.aot.program import read_program
from vllm_spark.distro.elf.fatbin import Compression, Flag, containers
from vllm_spark.distro.elf.kernels import assembled_for, cubin_kernels, cubin_variables
from vllm_spark.distro.elf.payload import payload
from vllm_spark.distro.elf.source import BytesSource
from vllm_spark.distro.elf.target import Capability, Target
from vllm_spark.distro.ext.toolchain import Toolchain
from vllm_spark.errors import ProcessError

HEAD = b".version 9.0\n.target sm_80\n.address_size 64\n"
PTX = (
    HEAD
    + b"""
.global .align 4 .b8 table[32];
.const .align 4 .u32 limit = 3;
.visible .entry fill(.param .u64 where) {
  .reg .b32 %r<3>; .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [where];
  ld.const.u32 %r1, [limit];
  st.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry nothing() { ret; }
"""
)


def test_names_its_version_and_target(assembler: Assembler) -> None:
    assert assembler.version == "13.0.88"
    assert (assembler.target, assembler.flags) == (Target(121), ("-arch=sm_121",))


def test_compiles(assembler: Assembler) -> None:
    fat_binary = assembler.assemble(PTX)
    program = read_program(fat_binary, assembler.target, "x")
    assert cubin_kernels(program.cubin) == ("fill", "nothing")
    assert set(cubin_variables(program.cubin)) == {"limit", "table"}
    assert assembled_for(program.cubin) == "sm_121"
    assert assembler.assemble(PTX) == fat_binary
    assert len(fat_binary) < len(program.cubin)


def test_another_device(tools: Toolchain) -> None:
    other = Assembler.of(dataclasses.replace(tools, profile=profile.load("h100-cu130")))
    program = read_program(other.assemble(PTX), Target(90), "x")
    assert assembled_for(program.cubin) == "sm_90"


def test_the_key_tells_ptx_version_and_flags_apart(assembler: Assembler) -> None:
    others = (
        dataclasses.replace(assembler, version="13.2.78"),
        dataclasses.replace(assembler, device=Capability(9, 0)),
    )
    keys = {assembler.key(PTX), assembler.key(PTX + b"\n"), *(one.key(PTX) for one in others)}
    assert len(keys) == 4
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)


@pytest.mark.parametrize(
    ("ptx", "reason"),
    [
        (
            HEAD.replace(b"9.0", b"99.1") + b".visible .entry k() { ret; }",
            r"Unsupported \.version 99\.1; current version",
        ),
        (HEAD.replace(b"sm_80", b"sm_80, debug_me") + b".visible .entry k() { ret; }", "debug_me"),
        (HEAD.replace(b"sm_80", b"sm_130") + b".visible .entry k() { ret; }", "sm_130"),
        (HEAD.replace(b"sm_80", b"sm_90a") + b".visible .entry k() { ret; }", "sm_90a"),
        (HEAD + b".visible .entry k() { oops; }", "oops|Parsing"),
        (HEAD + b".extern .func f();\n.visible .entry k() { call f; ret; }", "Unresolved extern function 'f'"),
        (HEAD + b".visible .entry k() { .shared .b8 s[900000]; .reg .b32 %r; ld.shared.u32 %r, [s]; ret; }", "shared"),
        (b"", "."),
        (b"\xff\xfe\x00garbage", "."),
    ],
)
def test_refusals_have_a_reason(assembler: Assembler, ptx: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as caught:
        assembler.assemble(ptx)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).startswith(("ptxas", "fatal", "error"))


def test_a_killed_ptxas_is_no_refusal(assembler: Assembler, tmp_path: Path) -> None:
    """It says nothing about the image, so the run stops instead of keeping the PTX."""
    ptxas = tmp_path / "bin" / "ptxas"
    ptxas.parent.mkdir()
    ptxas.write_text("#!/bin/sh\nkill -9 $$\n")
    ptxas.chmod(0o755)
    broken = dataclasses.replace(assembler, tools=dataclasses.replace(assembler.tools, root=tmp_path))
    with pytest.raises(ProcessError, match="exit status -9"):
        broken.assemble(PTX)


@pytest.mark.parametrize("mode", ["none", "speed", "balance", "size", "default"])
def test_every_compression_of_fatbinary_is_read(
    assembler: Assembler, tools: Toolchain, tmp_path: Path, mode: str
) -> None:
    cubin = read_program(assembler.assemble(PTX), assembler.target, "x").cubin
    (tmp_path / "image.cubin").write_bytes(cubin)
    proc.run(
        [
            *(tools.fatbinary, "-64", "--create=image.fatbin", f"--compress-mode={mode}"),
            "--image3=kind=elf,sm=121,file=image.cubin",
        ],
        cwd=tmp_path,
        env=tools.env,
    )
    source = BytesSource((tmp_path / "image.fatbin").read_bytes(), "x")
    ((entry,),) = (one.entries for one in containers(source, 0, source.size))
    assert payload(source, entry) == cubin
    assert (entry.compression is Compression.ZSTD) is (mode == "size")


def test_what_cuobjdump_cannot_uncompress(assembler: Assembler, tools: Toolchain, tmp_path: Path) -> None:
    """A payload that was zeroed and left in place stops it, whatever stands in the other fat binaries."""
    sound = assembler.assemble(PTX)
    source = BytesSource(sound, "x")
    ((entry,),) = (one.entries for one in containers(source, 0, source.size))
    assert entry.flags & Flag.ZSTD
    zeroed = sound[: entry.payload_offset] + bytes(entry.padded_size)
    for name, content in (("sound", sound), ("zeroed", zeroed)):
        path = tmp_path / f"{name}.fatbin"
        path.write_bytes(content)
        done = proc.run([tools.cuobjdump, "--list-elf", path], env=tools.env, check=False)
        assert (done.status == 0, "Uncompress failed" in done.output) == (name == "sound", name == "zeroed"), name
