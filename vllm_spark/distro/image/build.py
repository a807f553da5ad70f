"""Building the planned image with buildah or docker, and copying it out as a folder."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Literal

from vllm_spark import paths, proc
from vllm_spark.distro.image.plan import EPOCH
from vllm_spark.errors import ConfigError, ToolMissing

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.image.plan import Plan

__all__ = ["Tool", "build", "commands"]

Tool = Literal["buildah", "docker"]
_HINT = "apt-get install buildah, or install docker with buildx"


def choose(tool: Tool | None) -> Tool:
    """The tool that was asked for, else the first that is installed.

    Raises:
        ToolMissing: neither is.
    """
    if tool is not None:
        proc.require(tool, hint=_HINT)
        return tool
    if shutil.which("docker"):
        return "docker"
    if shutil.which("buildah"):
        return "buildah"
    raise ToolMissing("not installed", where="docker or buildah", hint=_HINT)


def commands(plan: Plan, tag: str, out: Path, tool: Tool) -> list[list[str]]:
    """The command lines that build the image and copy it to `out`."""
    context = paths.repo_root() / "docker"
    words = ["--platform", f"linux/{plan.architecture}", "--build-context", f"bundle={plan.bundle.resolve()}"]
    words += [word for name, value in plan.arguments.items() for word in ("--build-arg", f"{name}={value}")]
    words += [word for name, value in sorted(plan.labels.items()) for word in ("--label", f"{name}={value}")]
    words += ["--tag", tag, "--file", str(context / "Dockerfile")]
    if tool == "docker":
        output = f"type=oci,dest={out},tar=false,rewrite-timestamp=true"
        build = ["docker", "buildx", "build", "--build-arg", f"SOURCE_DATE_EPOCH={EPOCH}", "--provenance", "mode=max"]
        return [[*build, "--sbom", "true", *words, "--output", output, str(context)]]
    # chroot: no container runtime is needed, and Docker's format, because OCI's has no health check
    build = ["buildah", "build", "--isolation", "chroot", "--format", "docker", "--timestamp", EPOCH]
    pull = ["--pull-never"] if plan.base.startswith("localhost/") else []
    return [[*build, *pull, *words, str(context)], ["buildah", "push", tag, f"dir:{out}"]]


def build(plan: Plan, tag: str, out: Path, tool: Tool | None = None) -> Path:
    """Build and copy to the folder `out`, which appears whole or not at all.

    Raises:
        ConfigError: `out` exists.
        ToolMissing: no tool.
        ProcessError: it fails.
        ResourceError: no space for the image and the builder's copy of it.
    """
    if out.exists():
        raise ConfigError("exists already", where=str(out), hint="remove it, or name another")
    paths.require_space(out.parent, 3 * plan.contents.unpacked // 2)
    chosen = choose(tool)
    with paths.atomic_dir(out) as fresh:
        for command in commands(plan, tag, fresh / "image", chosen):
            proc.run(command)
        for path in sorted((fresh / "image").iterdir()):
            path.rename(fresh / path.name)
        (fresh / "image").rmdir()
    return out
