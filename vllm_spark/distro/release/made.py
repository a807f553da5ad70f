"""What a run of the pipeline made, for those who print it, measure it or publish it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_spark.distro.upstream import fetch

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_spark.distro.profile import Profile
    from vllm_spark.distro.release.patched import Patched
    from vllm_spark.distro.upstream.pins import Upstream
    from vllm_spark.distro.wheel.audit import Audit
    from vllm_spark.distro.wheel.repack import Repacked

__all__ = ["Release"]


@dataclass(frozen=True)
class Release:
    """What was made.

    Attributes:
        wheels: the patched vLLM and the extension.
        audits: one per wheel, in the same order; none has a violation.
        seconds: time by step.
    """

    upstream: Upstream
    profile: Profile
    wheels: tuple[Path, ...]
    index: Path
    patched: Patched
    repacked: Repacked
    audits: tuple[Audit, ...]
    seconds: dict[str, float]

    @property
    def digests(self) -> tuple[str, ...]:
        """SHA-256 of each wheel."""
        return tuple(fetch.sha256_of(wheel) for wheel in self.wheels)
