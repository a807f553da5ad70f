"""The release wheel: what is in it, that its bytes do not depend on who builds it, and what stops a build."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import StringTableSection, SymbolTableSection
from installer.sources import WheelFile

from vllm_spark import paths, proc
from vllm_spark.cli.main import main
from vllm_spark.distro import profile
from vllm_spark.distro.ext import build, library, toolchain, workplace
from vllm_spark.errors import ConfigError, ProcessError, ResourceError

NAME = "vllm_spark-0.33.0.1-cp311-abi3-manylinux_2_34_aarch64.whl"


def copy_of_checkout(to: Path) -> Path:
    ignore = shutil.ignore_patterns(".git", ".venv*", "out", "dist", "__pycache__", ".*cache")
    shutil.copytree(paths.repo_root(), to, ignore=ignore)
    return to


def elf(wheel: Path) -> ELFFile:
    with zipfile.ZipFile(wheel) as archive:
        return ELFFile(io.BytesIO(archive.read(build.LIBRARY)))


@pytest.mark.slow
def test_name_tag_and_record(gb10_wheel: Path) -> None:
    assert gb10_wheel.name == NAME
    with WheelFile.open(gb10_wheel) as wheel:
        wheel.validate_record()
        assert "Tag: cp311-abi3-manylinux_2_34_aarch64\n" in wheel.read_dist_info("WHEEL")
        assert "Requires-Dist: vllm==0.33.0+spark.1\n" in wheel.read_dist_info("METADATA")
    with zipfile.ZipFile(gb10_wheel) as archive:
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in archive.infolist()}
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert [name for name, mode in modes.items() if mode & 0o111] == [build.LIBRARY]


@pytest.mark.slow
def test_the_platform_tag_is_honest(gb10_wheel: Path) -> None:
    said = proc.run([sys.executable, "-m", "auditwheel", "show", gb10_wheel]).text
    assert '"manylinux_2_34_aarch64"' in said.replace("\n", " ")


@pytest.mark.slow
def test_no_stable_abi_violation(gb10_wheel: Path) -> None:
    said = proc.run([sys.executable, "-m", "abi3audit", "--summary", "--verbose", gb10_wheel])
    assert "0 ABI violations" in " ".join(said.output.split())


@pytest.mark.slow
def test_needs_torch_and_the_system_alone(gb10_wheel: Path) -> None:
    library = elf(gb10_wheel)
    dynamic = library.get_section_by_name(".dynamic")
    strings = library.get_section_by_name(".dynstr")
    assert isinstance(dynamic, DynamicSection)
    assert isinstance(strings, StringTableSection)
    needed = {strings.get_string(tag.entry.d_val) for tag in dynamic.iter_tags("DT_NEEDED")}
    assert needed - {"ld-linux-aarch64.so.1"} == {
        "libtorch.so", "libtorch_cpu.so", "libstdc++.so.6", "libgcc_s.so.1", "libc.so.6",
    }  # fmt: skip
    assert not list(dynamic.iter_tags("DT_RUNPATH"))
    assert library.get_machine_arch() == "AArch64"


@pytest.mark.slow
def test_offers_no_symbol_and_needs_cuda_shims_weakly(gb10_wheel: Path) -> None:
    symbols = elf(gb10_wheel).get_section_by_name(".dynsym")
    assert isinstance(symbols, SymbolTableSection)
    defined = [symbol.name for symbol in symbols.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"]
    strong = [symbol.name for symbol in symbols.iter_symbols() if symbol["st_info"]["bind"] != "STB_WEAK"]
    assert not [name for name in defined if name]
    assert not [name for name in strong if "cuda" in name and not name.startswith("aoti_torch_device_type")]


@pytest.mark.slow
def test_holds_the_image_of_a_gb10_with_the_hardware_convert(gb10_wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(gb10_wheel) as archive:
        library = Path(archive.extract(build.LIBRARY, tmp_path))
    tools = toolchain.ensure(profile.load("gb10-cu130"))
    listed = proc.run([tools.cuobjdump, "--list-elf", library], env=tools.env).text
    images = [line.split()[-1] for line in listed.splitlines() if line.startswith("ELF file")]
    assert images
    assert all(name.endswith(".sm_121a.cubin") for name in images), images
    code = proc.run([tools.cuobjdump, "-sass", "-fun", _pack_kernel(tools, library), library], env=tools.env).text
    converts = code.count("F2FP.SATFINITE.E2M1.F32")
    assert converts > 0
    assert converts % 4 == 0  # four per word of eight values, however often the loop is unrolled


def _pack_kernel(tools: toolchain.Toolchain, library: Path) -> str:
    symbols = proc.run([tools.cuobjdump, "-symbols", library], env=tools.env).text.split()
    return next(name for name in symbols if name.startswith("_Z") and "10pack_words" in name and "BFloat16" in name)


@pytest.mark.slow
def test_bytes_do_not_depend_on_who_builds_where(
    gb10_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another checkout, cache, home, umask, locale and CFLAGS give the same wheel."""
    downloads = paths.cache_dir("downloads")
    other = copy_of_checkout(tmp_path / "another checkout")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "downloads").symlink_to(downloads)
    for name, value in {
        "VLLM_SPARK_ROOT": other,
        "VLLM_SPARK_CACHE": tmp_path / "cache",
        "HOME": tmp_path,
        "TMPDIR": tmp_path,
        "LC_ALL": "C.UTF-8",
        "CXXFLAGS": "-O1 -g",
        "CUDAFLAGS": "-O1",
        "NVCC_APPEND_FLAGS": "-lineinfo",
        "LDFLAGS": "-Wl,-z,lazy",
        "SOURCE_DATE_EPOCH": "1700000000",
    }.items():
        monkeypatch.setenv(name, str(value))
    umask = os.umask(0o077)
    try:
        again = build.build(profile.load("gb10-cu130"), tmp_path / "out")
    finally:
        os.umask(umask)
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (gb10_wheel, again)]
    assert digests[0] == digests[1]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    checkout = copy_of_checkout(tmp_path / "checkout")  # its own content, so its own build folder
    (checkout / "csrc" / "marker.h").write_text(f"// {tmp_path}\n")
    monkeypatch.setenv("VLLM_SPARK_ROOT", str(checkout))
    work = _work_folder("h100-cu130", checkout)
    out = tmp_path / "out"
    argv = [sys.executable, "-m", "vllm_spark", "ext", "build", "--profile", "h100-cu130", "--out", str(out)]
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _wait_for(work / "build" / "build.ninja")
    os.kill(running.pid, how)
    _, said = running.communicate(timeout=60)
    assert list(out.iterdir()) == []
    if how is signal.SIGKILL:
        assert work.exists()
    else:
        assert running.returncode == 130
        assert said.splitlines()[-1] == b"interrupted; nothing half-written was kept"
        assert not work.exists()
        assert not _users_of(work)
    with workplace.workplace(work.name.rpartition("-")[2]) as again:
        assert again == work
        assert list(again.iterdir()) == []
    assert not work.exists()


def _work_folder(name: str, checkout: Path) -> Path:
    chosen = profile.load(name)
    tools = toolchain.ensure(chosen)
    digest = library.digest_of(chosen, tools, workplace.sources(checkout, library.COMPILED))
    return workplace._TEMPORARY / f"vllm-spark-build-{digest}"


def _users_of(folder: Path) -> list[str]:
    """Processes whose command line names `folder`, such as an orphaned compiler."""
    lines = proc.run(["ps", "-eww", "-o", "pid=,args="]).text.splitlines()
    return [line for line in lines if str(folder) in line]


def _wait_for(path: Path) -> None:
    for _ in range(3000):
        if path.exists():
            return
        time.sleep(0.1)
    pytest.fail(f"{path} did not appear")


def test_out_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("")
    for path in (tmp_path / "out", tmp_path / "out" / "below"):
        assert main(["ext", "build", "--out", str(path)]) == ConfigError.exit_code
        said = capsys.readouterr().err
        assert said.startswith(f"error: {path}: not a folder")


def test_out_is_not_writable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ext", "build", "--out", "/sys/vllm-spark"]) == ResourceError.exit_code
    assert capsys.readouterr().err.startswith("error: /sys/vllm-spark: not writable")


def test_the_build_folder_is_a_strangers_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another user may put under the well-known name must not be followed, or emptied."""
    monkeypatch.setattr(workplace, "_TEMPORARY", tmp_path)
    (tmp_path / "precious").mkdir()
    (tmp_path / "vllm-spark-build-0123").symlink_to(tmp_path / "precious")
    with pytest.raises(ResourceError, match="somebody else"), workplace.workplace("0123"):
        pass
    assert (tmp_path / "precious").is_dir()


@pytest.mark.slow
def test_a_source_that_does_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The compiler's own words reach the person, and no wheel appears."""
    checkout = copy_of_checkout(tmp_path / "checkout")
    (checkout / "csrc" / "ops.cpp").write_text("#error planted\n")
    monkeypatch.setenv("VLLM_SPARK_ROOT", str(checkout))
    argv = ["ext", "build", "--profile", "h100-cu130", "--out", str(tmp_path / "out")]
    assert main(argv) == ProcessError.exit_code
    assert list((tmp_path / "out").iterdir()) == []
    assert not _work_folder("h100-cu130", checkout).exists()
    assert "planted" in capsys.readouterr().err
