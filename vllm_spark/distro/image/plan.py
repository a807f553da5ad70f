"""What an image will be: from which base and bundle, with which labels. Everything is known before it is built."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark import paths
from vllm_spark.distro.bundle.verify import verify as verify_bundle
from vllm_spark.distro.series import store
from vllm_spark.distro.upstream import pins
from vllm_spark.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.bundle.lock import Locked
    from vllm_spark.distro.bundle.make import Contents
    from vllm_spark.distro.upstream.pins import Upstream

__all__ = ["EPOCH", "LABEL", "Plan", "default_base", "plan"]

EPOCH = "315532800"  # 1980-01-01, as in the wheels: every file of our layers gets this time
LABEL = "vllm-spark."
_ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
_BASE = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)
_PINNED = re.compile(r".+@sha256:[0-9a-f]{64}|localhost/.+")


@dataclass(frozen=True)
class Plan:
    """Inputs of one build.

    Attributes:
        base: reference of the base image, pinned by digest or local.
        packages: Debian packages to add; None for the Dockerfile's own, empty for a base that has them.
    """

    base: str
    bundle: Path
    contents: Contents
    packages: str | None
    labels: dict[str, str]

    @property
    def architecture(self) -> str:
        """As OCI calls it."""
        return _ARCHITECTURES[self.contents.platform]

    @property
    def arguments(self) -> dict[str, str]:
        """Values of the Dockerfile's arguments."""
        return {"BASE": self.base} | ({} if self.packages is None else {"PACKAGES": self.packages})


def default_base() -> str:
    """The base that docker/Dockerfile pins."""
    text = (paths.repo_root() / "docker" / "Dockerfile").read_text()
    found = _BASE.search(text)
    if found is None:
        raise ConfigError("no ARG BASE=", where="docker/Dockerfile", hint="restore it from git")
    return found[1]


def plan(bundle: Path, *, base: str | None = None, packages: str | None = None, revision: str = "") -> Plan:
    """Check the inputs and work out the labels.

    Args:
        bundle: folder of the bundle to install.
        base: None for the Dockerfile's.
        revision: the commit of our sources.

    Raises:
        ConfigError: no bundle, or a base that may change under its name.
        ArtefactError: the bundle is damaged, or holds other versions than this checkout makes.
    """
    if not bundle.is_dir():
        raise ConfigError("no such folder", where=str(bundle), hint="vllm-spark bundle make")
    base = base or default_base()
    if not _PINNED.fullmatch(base):
        raise ConfigError("may change under its name", where=base, hint="add @sha256:…, or use a localhost/ image")
    contents = verify_bundle(bundle)
    upstream = pins.load()
    wheels = {one.project: one for one in contents.wheels}
    wanted = {"vllm": upstream.vllm_version, "vllm-spark": upstream.package_version}
    for project, version in wanted.items():
        if project not in wheels or wheels[project].version != version:
            raise ArtefactError(f"does not hold {project} {version}", where=str(bundle), hint="vllm-spark bundle make")
    labels = _labels(base, upstream, wheels, revision)
    return Plan(base, bundle, contents, packages, {name: value for name, value in labels.items() if value})


def _labels(base: str, upstream: Upstream, wheels: dict[str, Locked], revision: str) -> dict[str, str]:
    licence = tomllib.loads((paths.repo_root() / "pyproject.toml").read_text())["project"]["license"]
    _, _, digest = base.partition("@")
    labels = {
        "org.opencontainers.image.title": "vllm-spark",
        "org.opencontainers.image.description": "vLLM for NVIDIA DGX Spark",
        "org.opencontainers.image.version": upstream.package_version,
        "org.opencontainers.image.licenses": licence,
        "org.opencontainers.image.revision": revision,
        "org.opencontainers.image.base.name": base.partition("@")[0],
        "org.opencontainers.image.base.digest": digest,
        f"{LABEL}base": base,
        f"{LABEL}vllm": upstream.vllm_version,
        f"{LABEL}upstream": upstream.version,
        f"{LABEL}cuda": upstream.requires.cuda,
        f"{LABEL}torch": wheels["torch"].version if "torch" in wheels else "",
        f"{LABEL}series": f"sha256:{store.load().digest}",
    }
    labels |= {f"{LABEL}wheel.{wheels[name].name}": f"sha256:{wheels[name].sha256}" for name in ("vllm", "vllm-spark")}
    return labels
