"""Signing the provenance statement, where there is somebody to sign it: sigstore, by its own program.

sigstore binds a signature to an identity that a login or a CI run proves (OIDC). Where there is none, a release stays
unsigned and its manifest says so; nothing is signed with a key that anybody could have made.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from vllm_spark import proc
from vllm_spark.errors import ArtefactError, ToolMissing

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SIGNED", "identity", "sign", "unsigned", "verify"]

SIGNED = "sigstore"
# What sigstore's program reads itself: the identity of a CI run, and the token of a person or of another CI. It never
# stands on a command line, which a log may show.
_AMBIENT = ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "SIGSTORE_IDENTITY_TOKEN")
_HINT = f"{sys.executable} -m pip install sigstore"


def identity() -> str | None:
    """The variable that proves who we are; None where nothing does."""
    return next((name for name in _AMBIENT if os.environ.get(name)), None)


def unsigned() -> str:
    """Why a release of this run is not signed."""
    return f"unsigned: no identity ({' and '.join(_AMBIENT)} are not set)"


def sign(statement: Path, bundle: Path) -> None:
    """Write the sigstore bundle of `statement`.

    Raises:
        ToolMissing: sigstore is not installed.
        ProcessError: the identity is refused, or sigstore's services do not answer.
    """
    proc.run([*_sigstore(), "sign", "--bundle", bundle, "--overwrite", statement])


def verify(statement: Path, bundle: Path, *, signer: str, issuer: str) -> None:
    """Check that `signer` signed `statement`, as `issuer` vouches.

    Raises:
        ArtefactError: no bundle, or not a good one.
        ToolMissing: sigstore is not installed.
    """
    if not bundle.is_file():
        raise ArtefactError("unsigned, but a signer is demanded", where=str(statement), hint="fetch the release again")
    command = [*_sigstore(), "verify", "identity", "--bundle", bundle, "--cert-identity", signer]
    done = proc.run([*command, "--cert-oidc-issuer", issuer, statement], check=False)
    if done.status != 0:
        last = (done.output.strip().splitlines() or ["no output"])[-1]
        raise ArtefactError(f"signature refused: {last}", where=str(bundle), hint="do not use this release")


def _sigstore() -> list[str | Path]:
    if importlib.util.find_spec("sigstore") is None:
        raise ToolMissing("not installed", where="sigstore", hint=_HINT)
    return [sys.executable, "-m", "sigstore"]
