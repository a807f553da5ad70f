"""From the compiled library and the package to the finished wheel of vllm-spark, byte for byte the same anywhere."""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from typing import TYPE_CHECKING

from vllm_spark import paths, proc
from vllm_spark.distro.ext.library import LIBRARY, compiled
from vllm_spark.distro.ext.workplace import environment, sources, stage, workplace
from vllm_spark.errors import ArtefactError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.profile import Profile

__all__ = ["LIBRARY", "build"]

_PARTS = ("pyproject.toml", "README.md", "LICENSE", "vllm_spark", "csrc/CMakeLists.txt")


def build(profile: Profile, out_dir: Path) -> Path:
    """Compile the extension and write the wheel for `profile` into `out_dir`, whole or not at all.

    Raises:
        ConfigError, IntegrityError, ToolMissing, ProcessError: see `library.compiled`.
        ResourceError: `out_dir` is not writable, or the build folder belongs to somebody else.
    """
    paths.require_folder(out_dir)
    library = compiled(profile).read_bytes()
    files = sources(paths.repo_root(), _PARTS)
    digest = hashlib.sha256(repr((profile, sorted(files.items()))).encode() + library).hexdigest()[:16]
    with workplace(digest) as work:
        stage(files, work / "src")
        stage({LIBRARY.rpartition("/")[2]: library}, work / "compiled")
        proc.run(_command(profile, work), cwd=work / "src", env=environment(work))
        made = _only_wheel(work / "wheel", profile)
        wheel = out_dir / made.name
        with made.open("rb") as source, paths.atomic_file(wheel) as file:
            shutil.copyfileobj(source, file)
    return wheel


def _command(profile: Profile, work: Path) -> list[str | Path]:
    options = [
        f"-Ccmake.define.SPARK_COMPILED={work / 'compiled' / LIBRARY.rpartition('/')[2]}",
        f"-Cwheel.tags={profile.wheel_tag}",
        f"-Cbuild-dir={work / 'build'}",
    ]
    return [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", work / "wheel", *options]


def _only_wheel(folder: Path, profile: Profile) -> Path:
    made = list(folder.glob("*.whl"))
    if len(made) != 1 or not made[0].name.endswith(f"-{profile.wheel_tag}.whl"):
        names = ", ".join(path.name for path in made) or "nothing"
        raise ArtefactError(f"the build made {names}", where=str(folder), hint="check [tool.scikit-build]")
    with zipfile.ZipFile(made[0]) as archive:
        if LIBRARY not in archive.namelist():
            raise ArtefactError(f"no {LIBRARY} inside", where=made[0].name, hint="check csrc/CMakeLists.txt")
    return made[0]
