"""Licences, vulnerabilities, notes and signatures: what is said of a release, and what must not be."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

import msgspec
import pytest

from tests.unit.release.conftest import PATCHES, make
from vllm_spark import console
from vllm_spark.distro.bundle.lock import Locked
from vllm_spark.distro.bundle.make import Contents
from vllm_spark.distro.release import licences, notes, sign, vulnerabilities
from vllm_spark.distro.release import manifest as form
from vllm_spark.distro.series.ledger import Dropped
from vllm_spark.errors import ArtefactError, DecisionNeeded, ProcessError, ResourceError, ToolMissing

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("metadata", "licence", "said_in"),
    [
        ("License-Expression: MIT\nLicense: something else", "MIT", "License-Expression"),
        ("License: Apache-2.0", "Apache-2.0", "License"),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License", "MIT License", "Classifier"),
        (f"License: {'x' * 200}\nClassifier: License :: OSI Approved :: BSD License", "BSD License", "Classifier"),
        (
            "Classifier: License :: OSI Approved :: MIT License\nClassifier: License :: OSI Approved :: BSD License",
            "BSD License, MIT License",
            "Classifier",
        ),
        ("License-File: LICENSE", "LICENSE", "License-File"),
        ("Summary: nothing", "", "nothing"),
        ("License:\n Copyright (c)\n  somebody", "Copyright (c) somebody", "License"),
    ],
)
def test_the_most_precise_field_counts(metadata: str, licence: str, said_in: str) -> None:
    found = licences.licence_of("demo", "1", f"Metadata-Version: 2.4\nName: demo\n{metadata}\n".encode())
    assert (found.licence, found.said_in) == (licence, said_in)


@dataclass
class Osv:
    """An OSV service that knows some packages: name -> vulnerability ids."""

    known: dict[str, list[str]]
    asked: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        osv = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = query["package"]["name"]
                osv.asked.append(f"{name}=={query['version']}")
                entries = [{"id": one, "summary": "bad", "affected": []} for one in osv.known.get(name, [])]
                body = json.dumps({"vulns": entries} if entries else {}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/query"


def contents(*pins: tuple[str, str]) -> Contents:
    wheels = tuple(Locked(project=p, version=v, name=f"{p}.whl", sha256="0" * 64, size=1) for p, v in pins)
    return Contents(1, (), "3.12", "aarch64", "2.39", 0, wheels)


BUNDLE = contents(("vllm", "0.33.0+spark.1"), ("vllm-spark", "0.33.0.1"), ("jinja2", "2.10"))
STAND_IN = {"vllm": "0.33.0", "vllm-spark": None}


def test_pip_audit_asks_about_upstream_in_our_place() -> None:
    with Osv({"jinja2": ["PYSEC-1"]}) as osv:
        found = vulnerabilities.ask(BUNDLE, STAND_IN, osv_url=osv.url)
    assert sorted(osv.asked) == ["jinja2==2.10", "vllm==0.33.0"]
    with pytest.raises(DecisionNeeded, match=r"1 known vulnerabilities, 0 packages unjudged: jinja2 2\.10 \(PYSEC-1\)"):
        vulnerabilities.judge(found, "")
    counts, findings = vulnerabilities.judge(found, "not reachable from vLLM")
    assert counts == form.Vulnerabilities(2, 0, 1, "not reachable from vLLM")
    assert [entry["name"] for entry in findings] == ["jinja2"]


def test_nothing_known_is_nothing_to_decide() -> None:
    with Osv({}) as osv:
        counts, findings = vulnerabilities.judge(vulnerabilities.ask(BUNDLE, STAND_IN, osv_url=osv.url), "")
    assert (counts, findings) == (form.Vulnerabilities(2, 0, 0), [])


def test_a_package_that_nobody_judged_is_not_called_sound() -> None:
    report = (
        b'{"dependencies": [{"name": "a", "skip_reason": "not found"}, {"name": "b", "version": "1", "vulns": []}]}'
    )
    found = msgspec.json.decode(report, type=vulnerabilities.Report)
    with pytest.raises(DecisionNeeded, match="0 known vulnerabilities, 1 packages unjudged: a"):
        vulnerabilities.judge(found, "  ")
    assert vulnerabilities.judge(found, "looked at")[0] == form.Vulnerabilities(1, 1, 0, "looked at")


def test_a_service_that_does_not_answer() -> None:
    with pytest.raises(ResourceError, match="cannot ask"):
        vulnerabilities.ask(BUNDLE, STAND_IN, osv_url="http://127.0.0.1:9/v1/query")


def test_notes_say_what_became_of_each_patch(tmp_path: Path) -> None:
    before = make(tmp_path / "old", patches=(*PATCHES, gone("load/a"), gone("load/b"), gone("load/c")))
    changed = msgspec.structs.replace(PATCHES[1], sha256="9" * 64)
    new = msgspec.structs.replace(PATCHES[0], name="kv/auto", subject="kv: auto")
    now = make(tmp_path / "new", patches=(PATCHES[0], changed, new), signature="unsigned: no identity")
    ledger = [
        Dropped("load/a", dt.date(2026, 1, 1), "0.34.0", "merged", "https://example.org/pull/1"),
        Dropped("load/b", dt.date(2026, 1, 1), "0.34.0", "nobody needs it"),
    ]
    said = [licences.Licence("a", "1", "MIT", "License"), licences.Licence("b", "1", "", "nothing")]
    text = notes.render(now, before, ledger, said).decode()
    sections = dict(part.split("\n\n", 1) for part in text.split("### ")[1:])
    assert sections["New since 0.33.0.1"].startswith("- `kv/auto`: kv: auto. Upstream: proposed https://example.org/1.")
    assert "`kernel/e2m1`" in sections["Changed"]
    assert "Not applied: repacked." in sections["Changed"]
    assert "`model/keys`" in sections["Carried on"]
    assert sections["Landed upstream"].startswith("- `load/a`: merged (https://example.org/pull/1)")
    assert sections["Dropped"].startswith("- `load/b`: nobody needs it")
    assert sections["Gone without a line in the ledger"].startswith("- `load/c`")
    assert "| `vllm/_C.abi3.so` | runs | 4 x sm_120 |" in text
    assert "unsigned: no identity" in text
    assert "2 packages in `reports/licences.json`; 1 say nothing" in text


def gone(name: str) -> form.Patch:
    return msgspec.structs.replace(PATCHES[0], name=name)


SIGSTORE = """
import pathlib, sys
bundle, signed = pathlib.Path(sys.argv[sys.argv.index("--bundle") + 1]), pathlib.Path(sys.argv[-1])
if sys.argv[1] == "sign":
    bundle.write_text("signed " + signed.read_text())
else:
    good = bundle.read_text() == "signed " + signed.read_text() and "release@example.org" in sys.argv
    print("OK" if good else "FAIL: identity does not match", file=sys.stderr)
    sys.exit(not good)
"""


@pytest.fixture
def sigstore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for sigstore's program: its services need an identity and a network."""
    package = tmp_path / "site" / "sigstore"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SIGSTORE)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)


@pytest.mark.usefixtures("sigstore")
def test_signed_and_verified(tmp_path: Path) -> None:
    statement, bundle = tmp_path / "s.json", tmp_path / "s.sigstore"
    statement.write_text("{}")
    sign.sign(statement, bundle)
    sign.verify(statement, bundle, signer="release@example.org", issuer="https://issuer.example.org")
    with pytest.raises(ArtefactError, match="signature refused: FAIL: identity does not match"):
        sign.verify(statement, bundle, signer="mallory@example.org", issuer="https://issuer.example.org")
    statement.write_text("{ }")
    with pytest.raises(ArtefactError, match="signature refused"):
        sign.verify(statement, bundle, signer="release@example.org", issuer="https://issuer.example.org")


@pytest.mark.usefixtures("sigstore")
def test_the_token_reaches_no_command_line_and_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIGSTORE_IDENTITY_TOKEN", "very-secret")
    assert sign.identity() == "SIGSTORE_IDENTITY_TOKEN"
    (tmp_path / "s.json").write_text("{}")
    console.set_verbosity(1)
    try:
        sign.sign(tmp_path / "s.json", tmp_path / "s.sigstore")
    finally:
        console.set_verbosity(0)
    out, err = capsys.readouterr()
    assert "sigstore sign" in err
    assert "very-secret" not in out + err


def test_no_identity_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "SIGSTORE_IDENTITY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert sign.identity() is None
    assert sign.unsigned().startswith("unsigned: no identity")


def test_sigstore_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore", None)
    (tmp_path / "s.json").write_text("{}")
    with pytest.raises((ToolMissing, ProcessError), match="sigstore"):
        sign.sign(tmp_path / "s.json", tmp_path / "b")
