"""The address of an HTTP endpoint, parsed from its text. Nothing is on disk. Threads: any."""

from __future__ import annotations

import re
from typing import NamedTuple

from segstore.choices import HOST
from segstore.errors import InvalidArgumentError, InvalidTypeError

_ADDRESS = re.compile(r"(?:(?P<host>\[[^\[\]]+\]|[^:\[\]]*):)?(?P<port>[0-9]{1,5})")
_MOST_PORT = 65_535


class HttpAddress(NamedTuple):
    """An address to listen at. An empty `host` stands for all addresses of this machine. If `port` is 0, the
    system chooses a free port.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host or '0.0.0.0'}:{self.port}"


def http_address(text: str, name: str = "http") -> HttpAddress:
    """Parse "HOST:PORT", "[ADDRESS]:PORT", ":PORT" (on all addresses of this machine), or "PORT" (on
    127.0.0.1). Raises InvalidTypeError or InvalidArgumentError; the message has the argument's name, `name`.
    """
    if not isinstance(text, str):
        raise InvalidTypeError(f"{name} must be a str, not {type(text).__name__}")
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > _MOST_PORT:
        raise InvalidArgumentError(
            f"{name}={text!r}: must be HOST:PORT, :PORT or PORT, with a port from 0 to {_MOST_PORT}"
        )
    host = HOST if found["host"] is None else found["host"].strip("[]")
    return HttpAddress(host, int(found["port"]))
