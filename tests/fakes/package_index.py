"""A package index on loopback that can be told to misbehave: short, altered, absent or slow files."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass
class PackageIndex:
    """Serves `files` (name -> bytes) as one project.

    Attributes:
        announced: name -> SHA-256 to announce instead of the true one.
        cut: name -> bytes after which the connection is dropped, once.
        requests: every path asked for, with its Range header.
    """

    project: str
    files: dict[str, bytes]
    announced: dict[str, str] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/simple/"

    def page(self) -> bytes:
        digest = {name: self.announced.get(name, hashlib.sha256(data).hexdigest()) for name, data in self.files.items()}
        links = [f'<a href="/files/{name}#sha256={digest[name]}">{name}</a>' for name in self.files]
        return "\n".join(links).encode()


def _handler(index: PackageIndex) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            index.requests.append((self.path, asked))
            name = self.path.rsplit("/", 1)[-1]
            if self.path == f"/simple/{index.project}/":
                self._send(200, index.page(), "text/html")
            elif self.path.startswith("/files/") and name in index.files:
                start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
                self._send(206 if asked else 200, index.files[name][start:], "application/octet-stream", name)
            else:
                self._send(404, b"", "text/plain")

        def _send(self, status: int, body: bytes, kind: str, name: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            limit = index.cut.pop(name, None)
            self.wfile.write(body if limit is None else body[:limit])
            if limit is not None:
                self.close_connection = True

    return Handler
