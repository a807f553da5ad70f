"""Is an image what its labels say, made from these wheels, and fit to be run by strangers?"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any

from vllm_spark.distro.image.layout import open_image
from vllm_spark.distro.image.plan import LABEL
from vllm_spark.distro.image.report import Part, Report
from vllm_spark.distro.image.walk import SITE, walk
from vllm_spark.distro.upstream.fetch import sha256_of
from vllm_spark.distro.wheel.archive import Wheel
from vllm_spark.distro.wheel.record import encode, read_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from vllm_spark.distro.image.walk import Tree

__all__ = ["BUDGET", "verify"]

BUDGET = 300_000_000  # bytes that an image may add to base and wheels
_SECRET_FILES = re.compile(r"(^|/)(\.netrc|\.pypirc|\.git-credentials|id_(rsa|ed25519|ecdsa)|\.docker/config\.json)$")
_SECRET_NAMES = re.compile(r"(TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|CREDENTIAL)", re.IGNORECASE)
_CACHES = re.compile(r"^(cache/.|root/\.cache/|var/lib/apt/lists/.|var/cache/apt/archives/.*\.deb$|opt/.*\.pyc$)")
_PTXAS = "triton/backends/nvidia/bin/ptxas-blackwell"


def verify(folder: Path, wheels: Sequence[Path]) -> tuple[Report, tuple[str, ...]]:
    """Read the image in `folder` and compare it with `wheels`, which it must have been made from.

    Returns:
        What it is, and what is wrong with it.

    Raises:
        ConfigError, IntegrityError, ArtefactError: see `layout.open_image` and `walk.walk`.
    """
    image = open_image(folder)
    tree = walk(image)
    config = image.config.get("config", {})
    labels: dict[str, str] = config.get("Labels") or {}
    lists = _lists(tree)
    packages = {name: sum(tree.files[path].size for path in paths) for name, paths in lists.items()}
    own = tree.first_own if tree.first_own is not None else len(tree.unpacked)
    installed = sum(packages.values())
    made_by = [
        str(step.get("created_by", "")) for step in image.config.get("history", []) if not step.get("empty_layer")
    ]
    made_by += [""] * (len(image.layers) - len(made_by))
    report = Report(
        digest=image.digest,
        platform=f"{image.config.get('os')}/{image.config.get('architecture')}",
        base=labels.get(f"{LABEL}base", ""),
        wheels={wheel.name: sha256_of(wheel) for wheel in wheels},
        compressed=sum(layer.size for layer in image.layers),
        unpacked=sum(file.size for file in tree.files.values()),
        base_unpacked=sum(tree.unpacked[:own]),
        packages=packages,
        added=sum(tree.unpacked[own:]) - installed,
        layers=tuple(
            Part(text[:120], layer.size, size)
            for text, layer, size in zip(made_by, image.layers, tree.unpacked, strict=False)
        ),
    )
    problems = (*_settings(config), *_contents(tree, own, lists), *_wheels(tree, labels, wheels), *_budget(report))
    return report, problems


def _lists(tree: Tree) -> dict[str, set[str]]:
    """Paths of the image by distribution, from each one's own list, the largest distribution first."""
    found: dict[str, set[str]] = {}
    for path, record in tree.records.items():
        site = SITE.match(path)
        if site is not None and path in tree.files:
            rows = csv.reader(record.decode(errors="replace").splitlines())
            names = {_joined(site[0], row[0]) for row in rows if row}
            found[path.split("/")[-2].split("-")[0]] = names & tree.files.keys()
    return dict(sorted(found.items(), key=lambda entry: -sum(tree.files[path].size for path in entry[1])))


def _joined(site: str, name: str) -> str:
    """A path of RECORD, which may climb out of site-packages to scripts, as a path of the image."""
    parts: list[str] = []
    for part in (site + name).split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return "/".join(parts)


def _settings(config: dict[str, Any]) -> Iterator[str]:
    if str(config.get("User", "")).split(":")[0] in ("", "0", "root"):
        yield "runs as root"
    if "entrypoint.sh" not in " ".join(config.get("Entrypoint") or ()):
        yield "has another entry point than ours"
    if "healthcheck.py" not in " ".join((config.get("Healthcheck") or {}).get("Test") or ()):
        yield "has no health check that asks for a token"
    if "/cache" not in (config.get("Volumes") or {}):
        yield "keeps its caches in no volume"
    for variable in config.get("Env") or ():
        name, _, value = variable.partition("=")
        if _SECRET_NAMES.search(name) and value:
            yield f"sets {name}, which looks like a credential"


def _contents(tree: Tree, own: int, lists: dict[str, set[str]]) -> Iterator[str]:
    for path, file in tree.files.items():
        if _SECRET_FILES.search(path):
            yield f"holds {path}, which looks like a credential"
        if file.layer >= own and file.mode & 0o6000:
            yield f"adds {path}, which runs with another's rights"
        if file.layer >= own and _CACHES.search(path):
            yield f"holds {path}, which belongs to a cache"
    known: set[str] = set().union(*lists.values())
    strays = sorted(path for path in tree.files if SITE.match(path) and path not in known)
    # A .pth file or a sitecustomize.py runs in every Python process.
    yield from (f"holds {path}, which no installed package lists" for path in strays)
    if "triton" in lists:
        found = [file for path, file in tree.files.items() if path.endswith(_PTXAS)]
        if not any(file.mode & 0o111 for file in found):
            yield f"has no {_PTXAS} that can be run, so Triton cannot compile for the device"


def _wheels(tree: Tree, labels: dict[str, str], wheels: Sequence[Path]) -> Iterator[str]:
    """Labels first, for a clear word; then every file of each wheel, for the labels may lie."""
    for wheel in wheels:
        said = labels.get(f"{LABEL}wheel.{wheel.name}", "nothing")
        if said != f"sha256:{sha256_of(wheel)}":
            yield f"label of {wheel.name} says {said}: the image was built from another wheel"
        site = next((SITE.match(path) for path in tree.records), None)
        prefix = site[0] if site else ""
        with Wheel(wheel) as archive:
            record = read_record(archive)
        different = [
            name
            for name, row in record.items()
            if row.hash and not name.split("/")[0].endswith(".data") and not _same(tree, prefix + name, row.hash)
        ]
        if different:
            more = f" and {len(different) - 1} more" if len(different) > 1 else ""
            yield f"{different[0]}{more} not as in {wheel.name}: the image was built from another wheel"


def _same(tree: Tree, path: str, expected: str) -> bool:
    file = tree.files.get(path)
    return file is not None and encode(file.sha256) == expected


def _budget(report: Report) -> Iterator[str]:
    if report.added > BUDGET:
        yield f"adds {report.added / 1e6:.0f} MB to base and wheels; the budget is {BUDGET / 1e6:.0f} MB"
