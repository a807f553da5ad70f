"""RECORD: the list of a wheel's files with their hashes.

Source: packaging.python.org, "Recording installed projects" and "Binary distribution format".
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from installer.exceptions import InstallerError
from installer.records import InvalidRecordEntry, parse_record_file
from installer.sources import WheelFile

from vllm_spark.distro.wheel.archive import Wheel
from vllm_spark.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Row", "digest", "encode", "format_record", "read_record", "verify_record"]

# RECORD lists itself, and never its signatures.
_UNHASHED = ("RECORD", "RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True)
class Row:
    """One line: a member, `sha256=…` in URL-safe base64 without padding, and its size in bytes."""

    name: str
    hash: str
    size: int


def digest(blocks: Iterable[bytes], name: str) -> Row:
    """Hash a member's bytes."""
    hasher = hashlib.sha256()
    size = 0
    for block in blocks:
        hasher.update(block)
        size += len(block)
    return Row(name, encode(hasher.digest()), size)


def encode(sha256: bytes) -> str:
    """A digest as RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(sha256).rstrip(b"=").decode()


def format_record(rows: Iterable[Row], dist_info: str) -> bytes:
    """The text of RECORD: `rows` sorted by name, then RECORD itself without a hash."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((row.name, row.hash, row.size) for row in sorted(rows, key=lambda row: row.name))
    writer.writerow((f"{dist_info}/RECORD", "", ""))
    return text.getvalue().encode()


def read_record(wheel: Wheel) -> dict[str, Row]:
    """RECORD by member name, checked against the archive's directory: same names, same sizes, SHA-256 throughout.

    Raises:
        IntegrityError: they disagree. Contents are hashed by `verify_record`, not here.
    """
    own = f"{wheel.dist_info}/RECORD"
    rows: dict[str, Row] = {}
    try:
        text = wheel.read(own).decode()
        for name, hash_, size in parse_record_file(text.splitlines()):
            if name in rows:
                raise _disagree(wheel, name, "listed twice")
            if name != own:
                rows[name] = Row(name, hash_, int(size))
    except (InvalidRecordEntry, ValueError, csv.Error) as err:
        raise _disagree(wheel, own, f"malformed RECORD ({err})") from err
    listed = {name for name in wheel.members if name not in {f"{wheel.dist_info}/{one}" for one in _UNHASHED}}
    for name in sorted(listed ^ set(rows)):
        raise _disagree(wheel, name, "not listed in RECORD" if name in listed else "listed in RECORD but missing")
    for name, row in rows.items():
        if not row.hash.startswith("sha256="):
            raise _disagree(wheel, name, "no SHA-256 in RECORD")
        if row.size != wheel.members[name].file_size:
            raise _disagree(wheel, name, f"{wheel.members[name].file_size} bytes, RECORD says {row.size}")
    return rows


def verify_record(path: Path) -> None:
    """Hash every member against RECORD, with the independent library `installer`.

    Raises:
        IntegrityError: a file differs or is not listed; the message names up to five.
        ArtefactError: the archive is unsafe or damaged.
    """
    with Wheel(path) as wheel:
        read_record(wheel)
    try:
        with WheelFile.open(path) as source:
            source.validate_record(validate_contents=True)
    except WheelFile.validation_error as err:
        issues = [one.replace(f"In {path}, ", "") for one in getattr(err, "issues", [str(err)])]
        shown = "; ".join(issues[:5]) + (f" and {len(issues) - 5} more" if len(issues) > 5 else "")
        raise IntegrityError(f"RECORD does not verify: {shown}", where=path.name, hint="fetch the file again") from err
    except (InstallerError, zipfile.BadZipFile, zlib.error, EOFError) as err:
        raise IntegrityError(f"damaged ({err})", where=path.name, hint="fetch the file again") from err


def _disagree(wheel: Wheel, name: str, what: str) -> IntegrityError:
    return IntegrityError(what, where=f"{wheel.path.name}: {name}", hint="fetch the file again")
