"""The health check against servers that serve, hang, refuse or lie; the entry point against what people type."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from vllm_spark import paths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType


@pytest.fixture(scope="module")
def health() -> ModuleType:
    spec = importlib.util.spec_from_file_location("healthcheck", paths.repo_root() / "docker" / "healthcheck.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Server(ThreadingHTTPServer):
    """An OpenAI server of one model; `fault` names what is wrong with it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fault = ""
        self.key = ""
        self.release = threading.Event()

    @property
    def words(self) -> list[str]:
        return ["vllm", "serve", "model", "--port", str(self.server_port)]


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "model"}] if self.server.fault != "no model" else []})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.fault == "hangs":
            self.server.release.wait(20)
        self._answer({"usage": {"completion_tokens": 0 if self.server.fault == "no token" else asked["max_tokens"]}})

    def _answer(self, body: dict[str, Any]) -> None:
        refused = self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}"
        data = b"<html>" if self.server.fault == "not JSON" else json.dumps(body).encode()
        self.send_response(401 if refused else 500 if self.server.fault == "error" else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield running
        running.release.set()
        running.shutdown()
        thread.join()


def test_a_token_is_health(health: ModuleType, server: Server) -> None:
    assert health.check(server.words, {}) == ""


@pytest.mark.parametrize("fault", ["no model", "no token", "not JSON", "error", "hangs"])
def test_whatever_gives_no_token_is_not(
    health: ModuleType, server: Server, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "TIMEOUT", 0.5)
    server.fault = fault
    problem = health.check(server.words, {})
    assert "token" in problem
    assert "\n" not in problem


def test_nobody_listens(health: ModuleType) -> None:
    assert "no token from http://127.0.0.1:9: URLError" in health.check(["vllm", "serve", "--port=9"], {})


@pytest.mark.parametrize(("words", "environment"), [(["--api-key", "k"], {}), ([], {"VLLM_API_KEY": "k"})])
def test_the_key_is_the_servers_own(
    health: ModuleType, server: Server, words: list[str], environment: dict[str, str]
) -> None:
    server.key = "k"
    assert health.check([*server.words, *words], environment) == ""
    assert "401" in health.check(server.words, {})


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ([], "http://127.0.0.1:8000"),
        (["--host", "0.0.0.0", "--port", "80"], "http://127.0.0.1:80"),  # noqa: S104 - what people write
        (["--host=::", "--port=9000", "--port", "9001"], "http://[::1]:9001"),
        (["--host", "fd00::1"], "http://[fd00::1]:8000"),
        (["--host", "10.0.0.5", "--ssl-certfile", "c.pem"], "https://10.0.0.5:8000"),
        (["--ssl_certfile=c.pem"], "https://127.0.0.1:8000"),
    ],
)
def test_where_the_server_listens(health: ModuleType, words: list[str], address: str) -> None:
    assert health.address(["vllm", "serve", "m", *words]) == address


@pytest.mark.parametrize(
    ("words", "run"),
    [
        (["org/model"], "vllm|serve|org/model"),
        (["org/model", "--max-model-len", "8192"], "vllm|serve|org/model|--max-model-len|8192"),
        (["vllm", "serve", "org/model"], "vllm|serve|org/model"),
        (["serve", "org/model"], "vllm|serve|org/model"),
        (["vllm", "serve"], "vllm|serve"),
        ([], "vllm|serve"),
        (["vllm", "bench", "serve"], "vllm|bench|serve"),
        (["vllm", "--version"], "vllm|--version"),
        (["vllm-spark", "doctor"], "vllm-spark|doctor"),
        (["--help"], "vllm|serve|--help"),
        (["a b", "--hf-overrides", '{"x": "$HOME *"}'], 'vllm|serve|a b|--hf-overrides|{"x": "$HOME *"}'),
        (["vllmfan/model"], "vllm|serve|vllmfan/model"),
    ],
)
def test_the_entry_point_passes_words_straight_through(tmp_path: Path, words: list[str], run: str) -> None:
    for name in ("vllm", "vllm-spark"):
        (tmp_path / name).write_text('#!/bin/sh\nprintf %s "${0##*/}"\nprintf "|%s" "$@"\n')
        (tmp_path / name).chmod(0o755)
    script = paths.repo_root() / "docker" / "entrypoint.sh"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", script, *words], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.rstrip("|") == run
