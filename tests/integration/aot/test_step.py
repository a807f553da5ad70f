"""The whole step on small real files: compile, splice, verify, pack; and what may go wrong on the way."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.integration.aot.conftest import DATA
from vllm_spark import paths, proc
from vllm_spark.cli import aot as verb
from vllm_spark.cli.main import main
from vllm_spark.distro.aot.assembler import Assembler
from vllm_spark.distro.aot.candidates import candidates, obstacle, text
from vllm_spark.distro.aot.fill import fill, fill_from_wheel
from vllm_spark.distro.aot.members import survey
from vllm_spark.distro.aot.splice import State
from vllm_spark.distro.aot.supply import CacheSupply
from vllm_spark.distro.aot.verify import verify, verify_wheel
from vllm_spark.distro.elf.report import inspect_extension, lost_kernels
from vllm_spark.distro.elf.shared import read_shared_object
from vllm_spark.distro.elf.source import FileSource, chunks
from vllm_spark.distro.elf.target import Capability, Support
from vllm_spark.distro.ext.toolchain import Toolchain
from vllm_spark.distro.upstream import fetch, pins
from vllm_spark.distro.wheel.devicecode import DeviceCode
from vllm_spark.distro.wheel.repack import repack
from vllm_spark.errors import ArtefactError, ResourceError

GB10 = Capability(12, 1)
SMALL = "vllm/_moe_C_stable_libtorch.abi3.so"  # one kernel of upstream's is left to the driver here


def rewritten(path: Path, out: Path, supply: CacheSupply, device: Capability | None = GB10) -> DeviceCode:
    code = DeviceCode(device, supply)
    with FileSource(path, path.name) as source:
        result = code.rewrite(source)
        assert result is not None
        with out.open("wb") as file:
            file.writelines(chunks(result))
    return code


@pytest.mark.parametrize("keep_ptx", [False, True])
def test_all_readers_agree(
    extension: Path, supply: CacheSupply, tmp_path: Path, tools: Toolchain, keep_ptx: bool
) -> None:
    supply.keep_ptx = keep_ptx
    with FileSource(extension) as source:
        filled = fill(supply, [source])
        assert (filled.present, filled.compiled, filled.refused) == (0, 1, 0)
        before, kernels = inspect_extension(source, GB10)
    out = tmp_path / "out.so"
    code = rewritten(extension, out, supply)
    assert [one.state for one in code.images] == [State.COMPILED]
    with FileSource(out) as source:
        after, now = inspect_extension(source, GB10)
    assert (before.verdict, after.verdict) == (Support.JIT, Support.NATIVE)
    assert after.images == {"sm_121": 1} | ({"compute_80": 1} if keep_ptx else {})
    assert lost_kernels(kernels, now) == []
    assert out.stat().st_size == extension.stat().st_size
    seen = verify(out, "out.so", supply.target, tools, disassemble=True)
    assert (seen.listed, seen.extracted, seen.kernels) == (1 + keep_ptx, 1, 1)


def test_without_a_cache_entry_nothing_changes(extension: Path, supply: CacheSupply) -> None:
    with FileSource(extension) as source:
        code = DeviceCode(None, supply)
        assert code.rewrite(source) is None
    assert [one.state for one in code.images] == [State.MISSING]


def test_second_run_needs_no_compiler(extension: Path, supply: CacheSupply, monkeypatch: pytest.MonkeyPatch) -> None:
    with FileSource(extension) as source:
        fill(supply, [source])
        monkeypatch.setattr(Assembler, "assemble", None)
        again = fill(supply, [source, source])
    assert (again.present, again.compiled) == (1, 0)


def test_a_damaged_entry_is_named_left_out_and_made_anew(
    extension: Path, supply: CacheSupply, capsys: pytest.CaptureFixture[str]
) -> None:
    with FileSource(extension) as source:
        fill(supply, [source])
        (path,) = supply.store.folder.glob("*.image")
        sound = path.read_bytes()
        path.write_bytes(sound[:-1])
        (image,) = survey(extension, supply)
        assert (image.state, image.reason) == (State.MISSING, "its cache entry is damaged")
        assert "compiled image is damaged" in capsys.readouterr().err
        assert fill(supply, [source]).compiled == 1
    assert path.read_bytes() == sound


def test_an_entry_of_another_program_stops_the_run(extension: Path, supply: CacheSupply) -> None:
    """Sound bytes under the wrong name: it would load and compute something else."""
    with FileSource(extension) as source:
        (found,) = candidates(read_shared_object(source).containers, GB10)
        ptx = text(source, found.entry)
    supply.store.save(supply.assembler.key(ptx), supply.assembler.assemble(ptx.replace(b"hopper_only", b"another_one")))
    with pytest.raises(ArtefactError, match="2 kernels differ from the PTX, such as another_one"):
        survey(extension, supply)


def test_an_entry_for_another_device_counts_as_missing(extension: Path, supply: CacheSupply) -> None:
    with FileSource(DATA / "suffixes.so") as source, FileSource(extension) as own:
        container = read_shared_object(source).containers[0]
        (found,) = candidates(read_shared_object(own).containers, GB10)
        key = supply.assembler.key(text(own, found.entry))
        supply.store.save(key, source.read(container.offset, container.size))
    (image,) = survey(extension, supply)
    assert image.state is State.MISSING


def test_what_ptxas_refuses_stays_ptx(
    extension: Path, supply: CacheSupply, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PTX of a newer toolkit, as the image of a shared object. The same length, so that its place needs no change."""
    with FileSource(DATA / "speed.so") as source:
        fill(supply, [source])
        (found,) = candidates(read_shared_object(source).containers, GB10)
        data = b"".join(chunks(source))
    start = found.entry.payload_offset
    stored = data[start : start + found.entry.stored_size]
    assert stored.count(b".version 9.0") == 1  # LZ4 keeps what it sees first as it is
    newer = data[:start] + stored.replace(b".version 9.0", b".version 9.9") + data[start + len(stored) :]
    extension.write_bytes(newer)
    with FileSource(extension, "x/newer.so") as source:
        filled = fill(supply, [source])
    assert (filled.compiled, filled.refused) == (0, 1)
    assert "x/newer.so, compute_80 image at" in (told := capsys.readouterr().err)
    assert "Unsupported .version 9.9" in told
    (image,) = survey(extension, supply)
    assert image.state is State.KEPT
    assert image.reason.startswith("ptxas 13.0.88: ")
    out = tmp_path / "out.so"
    code = rewritten(extension, out, supply)
    assert [one.state for one in code.images] == [State.KEPT]
    with FileSource(out) as source:
        assert inspect_extension(source, GB10)[0].images == {"compute_80": 1}


def test_relocatable_code_is_left_alone(tools: Toolchain, supply: CacheSupply, tmp_path: Path) -> None:
    """nvcc -dc: what is to be linked on the device stands in a section of its own."""
    source_file = tmp_path / "part.cu"
    source_file.write_text('extern __device__ int f(); extern "C" __global__ void k(int* p) { *p = f(); }\n')
    made = tmp_path / "part.o"
    compiler = proc.require("g++", hint="install g++")
    arch = "arch=compute_80,code=compute_80"
    proc.run([tools.nvcc, "-ccbin", compiler, "-gencode", arch, "-dc", source_file, "-o", made], env=tools.env)
    with FileSource(made) as source:
        found = list(candidates(read_shared_object(source).containers, GB10))
        assert [obstacle(source, one) for one in found] == ["is to be linked on the device"]
        assert fill(supply, [source]).compiled == 0
    assert [one.state for one in survey(made, supply)] == [State.KEPT]


def test_two_runs_do_not_meet(extension: Path, supply: CacheSupply) -> None:
    with (
        paths.lock(supply.store.folder / ".lock"),
        FileSource(extension) as source,
        pytest.raises(ResourceError, match="another run holds the lock"),
    ):
        fill(supply, [source])


@pytest.fixture
def official() -> Path:
    upstream = pins.load()
    return fetch.fetch(upstream.project, upstream.file("wheel", "aarch64"))


def test_one_extension_of_upstream(official: Path, supply: CacheSupply, tools: Toolchain, tmp_path: Path) -> None:
    """Its only JIT kernel becomes native, its 2460 native ones stay."""
    with zipfile.ZipFile(official) as archive:
        path = Path(archive.extract(SMALL, tmp_path))
    with FileSource(path) as source:
        assert fill(supply, [source]).compiled == 1
    out = tmp_path / "out.so"
    code = rewritten(path, out, supply)
    states = [one.state for one in code.images]
    assert (states.count(State.COMPILED), states.count(State.NATIVE)) == (1, 27)
    with FileSource(out) as source:
        report, _ = inspect_extension(source, GB10)
    assert report.kernels == {Support.NATIVE: 2461}
    assert verify(out, SMALL, supply.target, tools, disassemble=True).kernels == 1


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with two copies of an extension, one inside a folder, and something that is none."""
    import base64
    import hashlib

    content = {
        "demo/_c.abi3.so": (DATA / "speed.so").read_bytes(),
        "demo/more/_d.so": (DATA / "speed.so").read_bytes(),
        "demo/_e.so": (DATA / "unstable.so").read_bytes(),
        "demo-1.0.dist-info/METADATA": b"Metadata-Version: 2.4\nName: demo\nVersion: 1.0\n",
        "demo-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp38-abi3-linux_aarch64\n",
    }
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in content.items()
    ]
    path = tmp_path / "demo-1.0-cp38-abi3-manylinux_2_28_aarch64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
        archive.writestr("demo-1.0.dist-info/RECORD", "\n".join([*rows, "demo-1.0.dist-info/RECORD,,", ""]))
    return path


def test_a_wheel(wheel: Path, supply: CacheSupply, tools: Toolchain, tmp_path: Path) -> None:
    filled = fill_from_wheel(supply, wheel)
    assert (filled.present, filled.compiled) == (0, 1)  # the same PTX twice
    options = {"version": "1.0+spark.1", "platform_tag": "manylinux_2_28_aarch64", "keep_for": GB10}
    done = repack(wheel, tmp_path / "a", replaced={}, compiled=supply, **options)  # type: ignore[arg-type]
    assert [(one.extension, one.state) for one in done.images] == [
        ("demo/_c.abi3.so", State.COMPILED),
        ("demo/more/_d.so", State.COMPILED),
    ]
    seen = list(verify_wheel(done.path, supply.target, tools))
    assert [(one.name, one.extracted) for one in seen] == [("demo/_c.abi3.so", 1), ("demo/more/_d.so", 1)]
    again = repack(wheel, tmp_path / "b", replaced={}, compiled=supply, **options)  # type: ignore[arg-type]
    assert again.sha256 == done.sha256


def test_a_file_that_is_no_elf_stops_the_run(wheel: Path, supply: CacheSupply) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("demo/fake.so", b"no shared object")
    with pytest.raises(ArtefactError, match=r"demo/fake\.so: not a readable ELF file"):
        fill_from_wheel(supply, wheel)


def compiles(pid: int) -> bool:
    """Whether a process has an image in the assembler."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end while we look
            if any(b"image.ptx" in Path(f"/proc/{child}/cmdline").read_bytes() for child in path.read_text().split()):
                return True
    return False


def test_an_interrupted_run_keeps_what_it_finished(wheel: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache).mkdir()
    for name in ("toolchain", "downloads"):
        (cache / name).symlink_to(paths.cache_dir(name))
    env = {**os.environ, "VLLM_SPARK_CACHE": str(cache)}
    command = [sys.executable, "-m", "vllm_spark", "aot", "compile", str(wheel)]
    child = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert child.stderr is not None
    with child.stderr:
        for line in child.stderr:
            if "images to compile" in line:
                break
        while child.poll() is None and not compiles(child.pid):
            time.sleep(0.005)
        child.send_signal(signal.SIGTERM)  # to nobody, if the image was ready that fast
        told = child.stderr.read()
        assert child.wait() in (0, 130), told  # a small image may be ready first
    folder = cache / "aot" / "sm_121-ptxas-13.0.88"
    assert len(list(folder.glob("*.image"))) == 1
    assert list(folder.glob("*.tmp")) == []
    assert list(cache.glob("aot-*")) == []
    again = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "images to compile" not in again.stderr


def test_the_verb(
    extension: Path,
    supply: CacheSupply,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(verb, "open_supply", lambda _, **_options: supply)

    def said(*words: str | Path) -> str:
        assert main(["aot", *map(str, words)]) == 0
        return capsys.readouterr().out

    assert "not in the cache" in said("status", extension)
    assert "1 images (1 kernels) not in the cache" in said("status", extension)
    assert "compiled" in said("compile", extension, "--jobs", "1")
    out = tmp_path / "out.so"
    assert "compiled" in said("splice", extension, "--out", out)
    assert "out.so" in said("verify", out, "--disassemble")
    packed = tmp_path / "packed.tar"
    digest = said("pack", packed).split()[-1]
    assert digest == fetch.sha256_of(packed)
    assert "0 images added, 1 were there" in said("unpack", packed, "--sha256", digest)
    assert main(["aot", "unpack", str(packed), "--sha256", "00" * 32]) == 9
    assert main(["aot", "unpack", "https://example.org/x.tar"]) == 2
