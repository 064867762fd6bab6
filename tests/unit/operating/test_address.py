"""Where an endpoint listens, as its user says it."""

from __future__ import annotations

import pytest

from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.operating.address import http_address

GIVEN = {
    "a port": ("9100", "127.0.0.1", 9100, "127.0.0.1:9100"),
    "a port of every address": (":9100", "", 9100, "0.0.0.0:9100"),
    "a host and a port": ("localhost:0", "localhost", 0, "localhost:0"),
    "an address": ("10.1.2.3:65535", "10.1.2.3", 65535, "10.1.2.3:65535"),
    "an address of IPv6": ("[::1]:9100", "::1", 9100, "[::1]:9100"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_addresses(name: str) -> None:
    text, host, port, told = GIVEN[name]
    found = http_address(text)
    assert (found.host, found.port, str(found)) == (host, port, told)


REFUSED = [
    "",
    ":",
    "localhost",
    "localhost:",
    "::1:9100",
    "a:b:1",
    "h:-1",
    "h:65536",
    "h:1 ",
    "http://h:1",
    "[]:1",
]


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        http_address(text, "--http")
    assert str(raised.value).startswith(f"--http={text!r}: must be HOST:PORT, :PORT or PORT")


def test_a_number_is_no_address() -> None:
    with pytest.raises(InvalidTypeError, match="http must be a str, not int"):
        http_address(9100)  # type: ignore[arg-type]
