"""Reading an image from a folder: an OCI layout, or the `dir:` form of skopeo and buildah. Every blob is hashed.

The `dir:` form keeps Docker's image format, which has a health check; OCI's own has none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_spark.distro.upstream.fetch import sha256_hex, sha256_of
from vllm_spark.errors import ArtefactError, ConfigError, IntegrityError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Layer", "Stored", "open_image"]

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_TEXT_LIMIT = 16 << 20


@dataclass(frozen=True)
class Layer:
    """One layer's blob, and the uncompressed digest that the configuration promises."""

    path: Path
    media_type: str
    diff_id: str
    size: int


@dataclass(frozen=True)
class Stored:
    """An image whose blobs are all there and unaltered.

    Attributes:
        digest: of the manifest.
        config: the image's configuration.
        layers: in the order in which they are laid on one another.
    """

    folder: Path
    digest: str
    config: dict[str, Any]
    layers: tuple[Layer, ...]


def open_image(folder: Path) -> Stored:
    """Find the one image in `folder` and check its blobs.

    Raises:
        ConfigError: there is no such folder, or it holds no image.
        IntegrityError: a blob is missing, cut short or altered.
        ArtefactError: it holds several images, or one that is malformed.
    """
    if not folder.is_dir():
        raise ConfigError("no such folder", where=str(folder), hint="vllm-spark image build")
    if (folder / "oci-layout").is_file():
        manifest_path = _manifest(folder)
    elif (folder / "manifest.json").is_file():
        manifest_path = folder / "manifest.json"
    else:
        raise ConfigError("holds no image: neither an OCI layout nor a dir: copy", where=str(folder))
    data = manifest_path.read_bytes()
    manifest = _json(manifest_path, folder)
    try:
        config_path = _checked(folder, manifest["config"])
        config = _json(config_path, folder)
        diffs = config["rootfs"]["diff_ids"]
        layers = [
            Layer(_checked(folder, one), one["mediaType"], diff, one["size"])
            for one, diff in zip(manifest["layers"], diffs, strict=True)
        ]
    except (KeyError, TypeError, ValueError) as err:
        raise ArtefactError(f"malformed image: {err!r}", where=str(folder), hint="build it again") from err
    return Stored(folder, f"sha256:{sha256_hex(data)}", config, tuple(layers))


def _manifest(folder: Path) -> Path:
    """The one image's manifest; docker wraps it in a second index when it stores attestations beside it."""
    path = folder / "index.json"
    for _level in range(3):
        document = _json(path, folder)
        if "manifests" not in document:
            return path
        try:
            path = _checked(folder, _one(document["manifests"], folder))
        except (KeyError, TypeError, AttributeError) as err:
            raise ArtefactError(f"malformed index: {err!r}", where=str(path), hint="build it again") from err
    raise ArtefactError("an index within an index within an index", where=str(folder), hint="copy one image out")


def _one(entries: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """The image itself; attestations that buildx stores beside it name no real platform."""
    real = [entry for entry in entries if entry.get("platform", {}).get("architecture") != "unknown"]
    if len(real) != 1:
        raise ArtefactError(f"holds {len(real)} images, one expected", where=str(folder), hint="copy one of them out")
    return real[0]


def _checked(folder: Path, entry: dict[str, Any]) -> Path:
    path = _blob(folder, entry["digest"])
    digest = _DIGEST.fullmatch(entry["digest"])
    if not path.is_file() or path.stat().st_size != entry["size"]:
        raise IntegrityError("missing or cut short", where=str(path), hint="copy the image again")
    if digest is None or sha256_of(path) != digest[1]:
        raise IntegrityError("altered", where=str(path), hint="copy the image again")
    return path


def _blob(folder: Path, digest: str) -> Path:
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise ArtefactError(f"{digest!r} is no SHA-256", where=str(folder), hint="build it again")
    return folder / "blobs" / "sha256" / found[1] if (folder / "oci-layout").is_file() else folder / found[1]


def _json(path: Path, folder: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _TEXT_LIMIT:
            raise ArtefactError("absurdly large", where=str(path))
        found: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict)
    except FileNotFoundError:
        raise IntegrityError("missing", where=str(path), hint="copy the image again") from None
    except msgspec.DecodeError as err:
        raise ArtefactError(f"not JSON: {err}", where=f"{folder}: {path.name}", hint="copy the image again") from err
    return found
