"""Kafka's own definitions of its messages and records, out of a data file that tools/kafka_messages.py makes
from Kafka's jars. Each one is parsed when it is first asked for. Threads: any.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

SCALARS: dict[str, Any] = {
    "bool": False, "int8": 0, "int16": 0, "uint16": 0, "int32": 0, "uint32": 0, "int64": 0, "float64": 0.0,
    "uuid": bytes(16), "string": "", "bytes": b"", "records": None,
}  # fmt: skip
"""The types that are no structures, with their defaults."""


class Versions(NamedTuple):
    """A range, both ends included; `low` > `high` is none."""

    low: int
    high: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high


NEVER = Versions(0, -1)
MADE = ()
"""The default of an array that starts empty, or of a structure that starts with its defaults: each object has
one of its own.
"""
_NO_END = 1 << 15
_GZIP = 16 + zlib.MAX_WBITS


def versions(text: str | None) -> Versions:
    """Read a range as Kafka writes it: "4-18", "12+", "7", "none"."""
    if text is None or text == "none":
        return NEVER
    low, dash, high = text.rstrip("+").partition("-")
    return Versions(int(low), _NO_END if text.endswith("+") else int(high if dash else low))


class Field(NamedTuple):
    """One field of a structure. `kind` is a scalar's type or a structure's name; `tag` is -1 where the field
    is never a tagged one (KIP-482). `default` is a value, None for null, or MADE.
    """

    name: str
    kind: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: Any

    @property
    def is_struct(self) -> bool:
        return self.kind not in SCALARS


class Message(NamedTuple):
    """A request, a response, a header, or the key or value of a record; `structs` are its structures by name,
    the one of its own name is the body.
    """

    name: str
    api_key: int
    kind: str
    valid: Versions
    flexible: Versions
    structs: dict[str, tuple[Field, ...]]


def snake_case(name: str) -> str:
    """`TransactionTimeoutMs` -> `transaction_timeout_ms`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class _Messages(Mapping[str, Message]):
    def __init__(self, lines: dict[str, str]) -> None:
        self._lines, self._parsed = lines, dict[str, Message]()

    def __getitem__(self, name: str) -> Message:
        if name not in self._parsed:
            self._parsed[name] = _message(json.loads(self._lines[name]))
        return self._parsed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


@cache
def messages() -> Mapping[str, Message]:
    """Return all messages by name."""
    loader: Any = __spec__.loader if __spec__ else None  # also that of an archive
    data = loader.get_data(os.path.join(os.path.dirname(__file__), "messages.json.gz"))
    return _Messages(dict(line.split(" ", 1) for line in zlib.decompress(data, _GZIP).decode().splitlines()))


def message(name: str) -> Message:
    """Return a message's definition. Raises KeyError."""
    return messages()[name]


def _message(held: dict[str, Any]) -> Message:
    structs: dict[str, tuple[Field, ...]] = {}
    for each in held.get("commonStructs", ()):
        _collect(each["name"], each["fields"], structs)
    _collect(held["name"], held.get("fields", []), structs)
    valid = versions(held["validVersions"])
    if held.get("latestVersionUnstable"):
        valid = Versions(valid.low, valid.high - 1)
    return Message(
        held["name"],
        held.get("apiKey", -1),
        held["type"],
        valid,
        versions(held.get("flexibleVersions")),
        structs,
    )


def _collect(name: str, fields: list[dict[str, Any]], structs: dict[str, tuple[Field, ...]]) -> None:
    structs[name] = tuple(map(_field, fields))
    for each in fields:
        if "fields" in each:
            _collect(each["type"].removeprefix("[]"), each["fields"], structs)


def _field(held: dict[str, Any]) -> Field:
    kind = held["type"].removeprefix("[]")
    tagged = versions(held.get("taggedVersions"))
    return Field(
        snake_case(held["name"]),
        kind,
        held["type"].startswith("[]"),
        versions(held.get("versions") or held.get("taggedVersions")),
        versions(held.get("nullableVersions")),
        tagged,
        held.get("tag", -1),
        _default(held, kind),
    )


def _default(held: dict[str, Any], kind: str) -> Any:
    given = held.get("default")
    if given == "null":
        return None
    if held["type"].startswith("[]") or kind not in SCALARS:
        return MADE
    if given is None or given == "":
        return SCALARS[kind]
    if kind == "bool":
        return str(given).lower() == "true"
    if kind.startswith(("int", "uint")):
        return int(str(given), 0)
    return float(given) if kind == "float64" else given
