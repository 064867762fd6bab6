"""A proxy before an S3 server that refuses requests as a busy one, or one whose credentials have ended, does;
or takes them, and loses the answers.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Fault = Callable[[str, str], str | None]
"""Returns what happens to a request with this method and path: a key of `ANSWERS`, `LOST`, or None."""
ANSWERS = {
    "SlowDown": (503, "Please reduce your request rate."),
    "InternalError": (500, "We encountered an internal error. Please try again."),
    "ExpiredToken": (400, "The provided token has expired."),
    "AccessDenied": (403, "Access Denied"),
}
LOST = "lost"
"""The server has done it, and nobody gets the answer."""
_OWN = frozenset({"connection", "transfer-encoding", "content-length"})


class S3Faults:
    """A proxy on `port`; `requests` are those that came, as METHOD PATH."""

    def __init__(self, server_port: int) -> None:
        self.requests: list[str] = []
        self.fault: Fault = lambda method, path: None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(server_port))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Take no more requests."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self, server_port: int) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Log nothing."""

            def handle_any(self) -> None:
                body = self._body()
                proxy.requests.append(f"{self.command} {self.path}")
                fault = proxy.fault(self.command, self.path)
                if fault in ANSWERS:
                    status, message = ANSWERS[fault]
                    told = f"<Error><Code>{fault}</Code><Message>{message}</Message></Error>".encode()
                    self._answer(status, [("Content-Type", "application/xml")], told)
                    return
                status, headers, data = self._passed_on(body)
                if fault == LOST:
                    self.close_connection = True
                    return
                self._answer(status, headers, data)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                found = b""
                while True:
                    line = self.rfile.readline()
                    size = int(line.split(b";")[0], 16)
                    found += line + self.rfile.read(size + 2)
                    if not size:
                        return found

            def _passed_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                there = http.client.HTTPConnection("127.0.0.1", server_port)
                there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() != "connection":
                        there.putheader(name, value)
                there.endheaders(body or None)
                answer = there.getresponse()
                data = answer.read()
                headers = [pair for pair in answer.getheaders() if pair[0].lower() not in _OWN]
                size = answer.getheader("Content-Length") if self.command == "HEAD" else None
                there.close()
                return answer.status, [*headers, *([("Content-Length", size)] if size else [])], data

            def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                if all(name != "Content-Length" for name, _ in headers):
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

        return Handler
