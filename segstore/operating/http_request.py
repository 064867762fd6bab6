"""Parses an HTTP/1.x request, as far as an endpoint needs it, and makes the bytes of an answer. Nothing is on
disk.

Threads: the endpoint's loop only.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

LINE = 8192
"""The maximum length of the request line and of a header line, in bytes."""
_MOST_HEADERS = 64
_FIRST = re.compile(rb"([A-Za-z]{1,32}) (\S+) HTTP/1\.[01]\r?\n")
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class HttpRequest:
    """An HTTP request. `path` does not include the query. The keys of `headers` are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def takes_gzip(self) -> bool:
        """Return whether the client accepts an answer that is compressed by gzip."""
        for each in self.headers.get("accept-encoding", "").lower().split(","):
            coding, _, weight = (part.strip() for part in each.partition(";"))
            if coding == "gzip":
                return re.fullmatch(r"q=0(\.0*)?", weight.replace(" ", "")) is None
        return False


@dataclass(frozen=True)
class HttpAnswer:
    """An HTTP answer. The connection is closed after it."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    def head(self) -> bytes:
        """Return the bytes of the status line and the headers."""
        lines = {
            "Content-Type": self.content_type,
            "Content-Length": str(len(self.body)),
            "Cache-Control": "no-store",
            "Connection": "close",
            **self.headers,
        }
        first = f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
        return (first + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n").encode()


def text_answer(status: HTTPStatus, text: str, **headers: str) -> HttpAnswer:
    """Return an answer whose body is `text`, one or several lines."""
    return HttpAnswer(status, f"{text}\n".encode(), headers=headers)


class MalformedRequestError(Exception):
    """Raised if a request is malformed. `answer` tells the client the reason."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.answer = text_answer(status, text)


async def read_request(reader: asyncio.StreamReader) -> HttpRequest:
    """Read the request of a connection, and return it. Raises MalformedRequestError, and EOFError if the
    client has closed the connection.
    """
    line = await _line(reader, HTTPStatus.REQUEST_URI_TOO_LONG)
    first = _FIRST.fullmatch(line)
    if first is None:
        raise MalformedRequestError(HTTPStatus.BAD_REQUEST, "not a request of HTTP/1.1")
    headers: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = (await _line(reader, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)).strip()
        if not line:
            break
        name, _colon, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    else:
        raise MalformedRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many headers")
    path = first[2].decode("latin-1").partition("?")[0]
    return HttpRequest(first[1].decode(), path, headers)


async def _line(reader: asyncio.StreamReader, too_long: HTTPStatus) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise MalformedRequestError(too_long, f"a line of more than {LINE} bytes") from None
