"""Reads properties files. `entries` parses any such file (Java: java.util.Properties). `client_settings`
converts a file of Kafka's tools (--command-config) to settings of librdkafka. Threads: any.

The settings of Kafka's Java clients and of librdkafka have the same names, with two exceptions. The user and
the password are settings of librdkafka, but options of a login module in Java. For a PEM trust store
librdkafka has a setting with another name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from segstore.errors import ConfigError

_LINE = re.compile(r"((?:[^\\=:\s]|\\.)+)\s*[=:\s]\s*(.*)")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


class PropertyEntry(NamedTuple):
    """An entry NAME=VALUE of a file. If the line has no value, `value` is None, and `name` is the whole
    line.
    """

    line: int
    name: str
    value: str | None


def entries(text: str) -> Iterator[PropertyEntry]:
    """Yield the entries of a file's text. `line` is the number of an entry's first line."""
    for number, line in _lines(text):
        match = _LINE.fullmatch(line)
        if match is None:
            yield PropertyEntry(number, line, None)
        else:
            yield PropertyEntry(number, _unescaped(match[1]), _unescaped(match[2]))


def _unescaped(text: str) -> str:
    """Return a text in which the escape sequences of java.util.Properties are replaced by the characters that
    they mean.
    """
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _letter(found[2]), text)


def _letter(escaped: str) -> str:
    return _LETTERS.get(escaped, escaped)


def client_settings(text: str, name: str) -> dict[str, str]:
    """Return the settings in `text`, the content of the file `name`. Raises ConfigError, whose message has
    the file and the line.
    """
    from segstore.wire.jaas import JAAS

    found: dict[str, str] = {}
    for number, key, value in entries(text):
        if value is None:
            raise ConfigError(f"{name}, line {number}: {key!r} must be NAME=VALUE")
        found |= _login(value, f"{name}, line {number}") if key == JAAS else {key: value}
    return _without_java_stores(found, name)


def _lines(text: str) -> list[tuple[int, str]]:
    """Return [(line number, line)], without comments. If a line ends in a backslash, the next line is joined
    to it.
    """
    found: list[tuple[int, str]] = []
    joined, begun = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.lstrip()
        begun = begun or number
        if not joined and line[:1] in ("", "#", "!"):
            begun = 0
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined += line[:-1]
            continue
        found.append((begun, (joined + line).rstrip()))
        joined, begun = "", 0
    return [*found, (begun, joined.rstrip())] if joined else found


def _login(value: str, where: str) -> dict[str, str]:
    """Return settings of librdkafka with the user and the password that are in the options of a login
    module.
    """
    from segstore.wire.jaas import login_of

    username, password = login_of(value, where)
    return {"sasl.username": username, "sasl.password": password}


def _without_java_stores(settings: dict[str, str], name: str) -> dict[str, str]:
    """Return `settings`, with the settings of Java's trust store and key store replaced by those of
    librdkafka (KIP-651: PEM files). Raises ConfigError if librdkafka can't read that type of file.
    """
    found = dict(settings)
    kind = found.pop("ssl.truststore.type", "JKS").upper()
    found.pop("ssl.truststore.password", None)
    if (location := found.pop("ssl.truststore.location", None)) is not None:
        if kind != "PEM":
            raise ConfigError(
                f"{name}: ssl.truststore.location is a {kind} file: librdkafka takes ssl.ca.location,"
                " a PEM file"
            )
        found["ssl.ca.location"] = location
    kind = found.pop("ssl.keystore.type", "JKS").upper()
    if "ssl.keystore.location" in found and kind != "PKCS12":
        raise ConfigError(
            f"{name}: ssl.keystore.location is a {kind} file: librdkafka takes one of"
            " ssl.keystore.type=PKCS12, or ssl.certificate.location and ssl.key.location, PEM files"
        )
    return found
