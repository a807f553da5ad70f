"""What the vulnerability databases know about the packages of a bundle, asked by pip-audit.

pip-audit calls a package that its database does not know "skipped" and ends well, also when it knew none at all. So
the judged ones are counted, and a release with unjudged or vulnerable packages needs somebody's word.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_spark import proc
from vllm_spark.distro.release.manifest import Vulnerabilities
from vllm_spark.errors import DecisionNeeded, ResourceError, ToolMissing

if TYPE_CHECKING:
    from vllm_spark.distro.bundle.make import Contents

__all__ = ["Report", "ask", "judge"]


class _Found(msgspec.Struct):
    id: str
    fix_versions: tuple[str, ...] = ()


class _Package(msgspec.Struct):
    name: str
    version: str = ""
    vulns: tuple[_Found, ...] = ()
    skip_reason: str = ""


class Report(msgspec.Struct):
    """What pip-audit prints."""

    dependencies: tuple[_Package, ...]


def ask(contents: Contents, stand_in: dict[str, str | None], *, osv_url: str | None = None) -> Report:
    """Ask about every package.

    Args:
        stand_in: by project, the version to ask about instead; None leaves the project out. Nobody knows our own.
        osv_url: an OSV service; None asks PyPI.

    Raises:
        ToolMissing: pip-audit is not installed.
        ResourceError: it could not ask.
    """
    if importlib.util.find_spec("pip_audit") is None:
        raise ToolMissing("not installed", where="pip-audit", hint=f"{sys.executable} -m pip install pip-audit")
    versions = {one.project: one.version for one in contents.wheels} | stand_in
    lines = [f"{name}=={version.partition('+')[0]}\n" for name, version in versions.items() if version]
    command: list[str | Path] = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--format", "json"]
    command += ["--progress-spinner", "off", *(["-s", "osv", "--osv-url", osv_url] if osv_url else [])]
    with tempfile.TemporaryDirectory(prefix="vllm-spark-") as folder:
        listing = Path(folder, "requirements.txt")
        listing.write_text("".join(lines))
        done = proc.run([*command, "--requirement", listing], check=False)
    try:
        return msgspec.json.decode(done.stdout, type=Report)
    except msgspec.DecodeError as err:
        last = (done.output.strip().splitlines() or ["no output"])[-1]
        hint = "check the network, or name another service with --osv-url"
        raise ResourceError(f"cannot ask: {last}", where="pip-audit", hint=hint) from err


def judge(report: Report, accepted: str) -> tuple[Vulnerabilities, list[dict[str, Any]]]:
    """The counts for the manifest, and the findings for the report.

    Raises:
        DecisionNeeded: something is vulnerable or unjudged, and nobody has accepted that.
    """
    unjudged = [package.name for package in report.dependencies if package.skip_reason]
    vulnerable = [package for package in report.dependencies if package.vulns]
    found = sum(len(package.vulns) for package in vulnerable)
    if (unjudged or vulnerable) and not accepted.strip():
        names = [f"{package.name} {package.version} ({package.vulns[0].id})" for package in vulnerable] or unjudged
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        what = f"{found} known vulnerabilities, {len(unjudged)} packages unjudged: {shown}"
        raise DecisionNeeded(what, hint='look at each, then add --accept "why this may be released"')
    counts = Vulnerabilities(len(report.dependencies) - len(unjudged), len(unjudged), found, accepted.strip())
    return counts, [
        msgspec.to_builtins(package) for package in report.dependencies if package.vulns or package.skip_reason
    ]
