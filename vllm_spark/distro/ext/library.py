"""The compiled library: byte for byte the same wherever it is built, and built once for a state of its sources."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from vllm_spark import console, paths, proc
from vllm_spark.distro.ext import toolchain
from vllm_spark.distro.ext.workplace import environment, sources, stage, workplace

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.profile import Profile

__all__ = ["LIBRARY", "compiled"]

LIBRARY = "vllm_spark/_C.abi3.so"  # in the wheel, and below the prefix that CMake installs to
COMPILED = ("csrc", "build/toolchains/target.cmake")


def compiled(profile: Profile, *, strict: bool = False) -> Path:
    """The library for `profile`, from the cache where these sources were compiled before; processes take turns.

    `VLLM_SPARK_LIBRARY` names it to `vllm_spark.runtime.kernels`.

    Args:
        strict: the host compiler's warnings are errors; for a compiler that we know. The bytes are the same.

    Raises:
        ConfigError, IntegrityError, ToolMissing: see `toolchain.ensure`.
        ProcessError: the compiler refuses.
        ResourceError: no space, or the build folder belongs to somebody else.
    """
    tools = toolchain.ensure(profile)
    files = sources(paths.repo_root(), COMPILED)
    digest = digest_of(profile, tools, files)
    folder = paths.cache_dir("library")
    name = f"{profile.name}-{digest}{'-strict' if strict else ''}"
    library = folder / name / LIBRARY.rpartition("/")[2]
    with paths.lock(folder / f".{name}.lock", wait=True):
        if not library.exists():
            with paths.atomic_dir(library.parent) as fresh, console.step(f"compiling for {profile.name}"):
                data = _compile(profile, tools, files, digest, strict=strict)
                (fresh / library.name).write_bytes(data)
    return library


def digest_of(profile: Profile, tools: toolchain.Toolchain, files: dict[str, bytes]) -> str:
    """What the compiled bytes depend on, as 16 hex digits."""
    total = hashlib.sha256(repr((profile, tools.root.name)).encode())
    total.update(proc.run([tools.host_compiler(), "--version"]).stdout)
    for name, data in files.items():
        total.update(f"{name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()[:16]


def _compile(
    profile: Profile, tools: toolchain.Toolchain, files: dict[str, bytes], digest: str, *, strict: bool
) -> bytes:
    compiler, torch_include = tools.host_compiler(), tools.torch_include()
    with workplace(digest) as work:
        stage(files, work / "src")
        # Through links, so that no path of this machine's cache reaches the compiler.
        (work / "cuda").symlink_to(tools.root)
        (work / "torch").symlink_to(torch_include)
        env, out = environment(work), work / "build"
        proc.run(
            ["cmake", *_defines(profile, compiler, work, strict=strict), "-S", work / "src/csrc", "-B", out], env=env
        )
        proc.run(["cmake", "--build", out], env=env)
        proc.run(["cmake", "--install", out, "--strip", "--prefix", work / "installed"], env=env)
        return (work / "installed" / LIBRARY).read_bytes()


def _defines(profile: Profile, compiler: Path, work: Path, *, strict: bool) -> list[str]:
    defines = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_TOOLCHAIN_FILE": work / "src" / "build" / "toolchains" / "target.cmake",
        "CMAKE_COMPILE_WARNING_AS_ERROR": "ON" if strict else "OFF",
        "SPARK_MACHINE": profile.machine,
        "SPARK_CXX": compiler,
        "SPARK_CUDA": work / "cuda",
        "SPARK_CUDA_ARCH": profile.cuda_arch,
        "SPARK_TORCH_INCLUDE": work / "torch",
        "SPARK_TORCH_TARGET": profile.torch_target,
    }
    return ["-G", "Ninja", *(f"-D{name}={value}" for name, value in defines.items())]
