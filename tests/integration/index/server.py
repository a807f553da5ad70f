"""An index on loopback that says afterwards what it was asked for."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from vllm_spark.distro.index.simple_json import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Server(ThreadingHTTPServer):
    """Serves a folder; `asked` lists (path, status, content type) in order."""

    def __init__(self, folder: Path, *, negotiate: bool) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
        self.asked: list[tuple[str, int, str]] = []
        self.negotiate = negotiate

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def simple(self) -> str:
        return f"{self.url}/simple/"

    def paths(self, suffix: str) -> list[str]:
        return [path for path, status, _type in self.asked if path.endswith(suffix) and status in (200, 206)]


class _Handler(SimpleHTTPRequestHandler):
    server: Server

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def send_head(self) -> Any:
        if self.server.negotiate and self.path.endswith("/") and CONTENT_TYPE in self.headers.get("Accept", ""):
            self.path += "index.json"
        return super().send_head()

    def guess_type(self, path: Any) -> str:
        return CONTENT_TYPE if str(path).endswith("/index.json") else super().guess_type(path)

    def log_request(self, code: Any = "-", size: Any = "-") -> None:  # noqa: ARG002 - the base class passes it
        path = self.path.removesuffix("index.json") if self.server.negotiate else self.path
        kind = CONTENT_TYPE if self.path.endswith("index.json") else ""
        self.server.asked.append((path, int(code), kind))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        pass


@contextlib.contextmanager
def serve(folder: Path, *, negotiate: bool = False) -> Iterator[Server]:
    with Server(folder, negotiate=negotiate) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
