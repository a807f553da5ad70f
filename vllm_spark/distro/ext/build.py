"""From `csrc` to the finished wheel of vllm-spark, byte for byte the same wherever it is built.

nvcc puts a hash of the source's absolute path into symbol names, so the build runs on a copy at a path that
depends on its content alone, below /tmp and not below TMPDIR. The environment is our own for the same reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_spark import console, paths, proc
from vllm_spark.distro.ext import toolchain
from vllm_spark.errors import ArtefactError, ConfigError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_spark.distro.profile import Profile

__all__ = ["LIBRARY", "build", "develop"]

LIBRARY = "vllm_spark/_C.abi3.so"
_COMPILED = ("csrc", "build/toolchains/target.cmake")
_PARTS = (*_COMPILED, "pyproject.toml", "README.md", "LICENSE", "vllm_spark")
_LEFT_OUT = {"__pycache__", ".mypy_cache", ".ruff_cache"}
_TEMPORARY = Path("/tmp")  # noqa: S108 - a path that is the same for everybody; `_workplace` guards it
_EPOCH = "315532800"  # 1980-01-01, the first date that a zip can tell


def build(profile: Profile, out_dir: Path, *, strict: bool = False) -> Path:
    """Compile the extension and write the wheel for `profile` into `out_dir`, whole or not at all.

    Args:
        strict: the host compiler's warnings are errors; for a compiler that we know.

    Raises:
        ConfigError, IntegrityError, ToolMissing: see `toolchain.ensure`.
        ProcessError: the compiler refuses.
        ResourceError: `out_dir` is not writable, or the build folder belongs to somebody else.
    """
    _require_folder(out_dir)
    tools = toolchain.ensure(profile)
    compiler, torch_include = tools.host_compiler(), tools.torch_include()
    files = _sources(paths.repo_root())
    with _workplace(_digest(profile, tools, compiler, files)) as work, console.step(f"compiling for {profile.name}"):
        _stage(files, work / "src")
        # Through links, so that no path of this machine's cache reaches the compiler.
        (work / "cuda").symlink_to(tools.root)
        (work / "torch").symlink_to(torch_include)
        proc.run(_command(profile, compiler, work, strict=strict), cwd=work / "src", env=_environment(work))
        made = _only_wheel(work / "wheel", profile)
        wheel = out_dir / made.name
        with made.open("rb") as source, paths.atomic_file(wheel) as file:
            shutil.copyfileobj(source, file)
    return wheel


def develop(profile: Profile) -> Path:
    """The compiled library alone, from the cache where these sources were built before; processes take turns.

    `VLLM_SPARK_LIBRARY` names it to `vllm_spark.runtime.kernels`.
    """
    tools = toolchain.ensure(profile)
    digest = _digest(profile, tools, tools.host_compiler(), _sources(paths.repo_root(), _COMPILED))
    folder = paths.cache_dir("library")
    library = folder / f"{profile.name}-{digest}" / Path(LIBRARY).name
    with paths.lock(folder / f".{profile.name}-{digest}.lock", wait=True):
        if not library.exists():
            with paths.atomic_dir(library.parent) as fresh:
                wheel = build(profile, fresh, strict=True)
                with zipfile.ZipFile(wheel) as archive:
                    (fresh / library.name).write_bytes(archive.read(LIBRARY))
                wheel.unlink()
    return library


def _require_folder(folder: Path) -> None:
    """Refuse before minutes of work what could not be kept after them."""
    with paths.resource_errors(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ConfigError("not a folder", where=str(folder), hint="name a folder with --out") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ResourceError("not writable", where=str(folder), hint="choose a folder that you may write to")


def _sources(root: Path, parts: tuple[str, ...] = _PARTS) -> dict[str, bytes]:
    """The files that the wheel is made from, by relative path."""
    found: list[Path] = []
    for part in parts:
        path = root / part
        found += sorted(path.rglob("*")) if path.is_dir() else [path]
    kept = [path for path in found if path.is_file() and not _LEFT_OUT.intersection(path.parts)]
    return {str(path.relative_to(root)): path.read_bytes() for path in kept if not path.name.endswith((".so", "~"))}


def _digest(profile: Profile, tools: toolchain.Toolchain, compiler: Path, files: dict[str, bytes]) -> str:
    total = hashlib.sha256(repr((profile, tools.root.name)).encode())
    total.update(proc.run([compiler, "--version"]).stdout)
    for name, data in files.items():
        total.update(f"{name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()[:16]


@contextlib.contextmanager
def _workplace(digest: str) -> Iterator[Path]:
    """An empty folder at the path that `digest` gives. One build of a user runs at a time: each takes all cores."""
    work = _TEMPORARY / f"vllm-spark-build-{digest}"
    with paths.lock(_TEMPORARY / f"vllm-spark-build-{os.geteuid()}.lock", wait=True), paths.resource_errors(work):
        if work.is_symlink() or (work.exists() and work.stat().st_uid != os.geteuid()):
            raise ResourceError("belongs to somebody else", where=str(work), hint="have it removed, then run again")
        if work.exists():
            # A killed build left it, and its compilers may still be at work there: away with the name first.
            shutil.rmtree(work.rename(f"{work}.{os.getpid()}"), ignore_errors=True)
        work.mkdir(mode=0o700)
        try:
            yield work
        finally:
            shutil.rmtree(work)


def _stage(files: dict[str, bytes], into: Path) -> None:
    for name, data in files.items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)


def _command(profile: Profile, compiler: Path, work: Path, *, strict: bool) -> list[str | Path]:
    defines = {
        "CMAKE_TOOLCHAIN_FILE": work / "src" / "build" / "toolchains" / "target.cmake",
        "CMAKE_COMPILE_WARNING_AS_ERROR": "ON" if strict else "OFF",
        "SPARK_MACHINE": profile.machine,
        "SPARK_CXX": compiler,
        "SPARK_CUDA": work / "cuda",
        "SPARK_CUDA_ARCH": profile.cuda_arch,
        "SPARK_TORCH_INCLUDE": work / "torch",
        "SPARK_TORCH_TARGET": profile.torch_target,
    }
    options = [f"-Ccmake.define.{name}={value}" for name, value in defines.items()]
    options += [f"-Cwheel.tags={profile.wheel_tag}", f"-Cbuild-dir={work / 'build'}"]
    return [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", work / "wheel", *options]


def _environment(work: Path) -> dict[str, str]:
    """Nothing of the caller's but where programs are: CFLAGS and the like would change the bytes."""
    scratch = work / "tmp"
    scratch.mkdir()
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return {"PATH": path, "TMPDIR": str(scratch), "HOME": str(scratch), "LC_ALL": "C", "SOURCE_DATE_EPOCH": _EPOCH}


def _only_wheel(folder: Path, profile: Profile) -> Path:
    made = list(folder.glob("*.whl"))
    if len(made) != 1 or not made[0].name.endswith(f"-{profile.wheel_tag}.whl"):
        names = ", ".join(path.name for path in made) or "nothing"
        raise ArtefactError(f"the build made {names}", where=str(folder), hint="check [tool.scikit-build]")
    with zipfile.ZipFile(made[0]) as archive:
        if LIBRARY not in archive.namelist():
            raise ArtefactError(f"no {LIBRARY} inside", where=made[0].name, hint="check csrc/CMakeLists.txt")
    return made[0]
