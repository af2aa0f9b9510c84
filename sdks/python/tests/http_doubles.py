"""Servers of the tests' own: one that loses answers on their way, one that answers what a right server never does."""

from __future__ import annotations

import contextlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Generator, List, Optional, Tuple
from urllib.parse import urlsplit


class Lossy:
    """A way to a server on which answers can get lost after the server has done its work."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream)
        self.lose = 0
        """How many of the next answers get lost."""
        self.seen: List[Tuple[str, str, Optional[str]]] = []
        """Method, path and idempotency key of each request."""
        self.url = ""


def _handler(lossy: Lossy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            return

        def pass_on(self) -> None:
            lossy.seen.append((self.command, self.path, self.headers.get("Idempotency-Key")))
            lost = lossy.lose > 0
            lossy.lose -= 1 if lost else 0
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            way = http.client.HTTPConnection(lossy.upstream.hostname or "", lossy.upstream.port or 80, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            way.request(self.command, self.path, body, headers)
            answer = way.getresponse()
            content = answer.read()
            way.close()
            self.close_connection = True
            if lost:
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type") or "")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do_PUT = pass_on

    return Handler


def _answering(status: int, content_type: str, body: bytes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            return

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = do_PUT = answer

    return Handler


@contextlib.contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Generator[str, None, None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def lossy_way(upstream: str) -> Generator[Lossy, None, None]:
    """A way to a server on which answers can get lost."""
    lossy = Lossy(upstream)
    with _serving(_handler(lossy)) as url:
        lossy.url = url
        yield lossy


@contextlib.contextmanager
def answering(status: int, body: bytes, content_type: str = "application/problem+json") -> Generator[str, None, None]:
    """A server that answers everything alike."""
    with _serving(_answering(status, content_type, body)) as url:
        yield url
