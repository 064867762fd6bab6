"""Kafka's own definitions of its messages and records, from a data file that tools/kafka_messages.py makes
from Kafka's jars. Each definition is parsed at its first use. Threads: any.
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
"""The types that are not structures, with their defaults."""


class Versions(NamedTuple):
    """A range of versions, both ends included. The range is empty if `low` > `high`."""

    low: int
    high: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high


NEVER = Versions(0, -1)
MADE = ()
"""Stands for the default of a field that starts as an empty array, or as a structure with its own defaults.
Each object gets a new array or structure.
"""
_NO_END = 1 << 15
_GZIP = 16 + zlib.MAX_WBITS


def versions(text: str | None) -> Versions:
    """Return the range of versions that Kafka writes as "4-18", "12+" or "7". "none" and None are the empty
    range.
    """
    if text is None or text == "none":
        return NEVER
    low, dash, high = text.rstrip("+").partition("-")
    return Versions(int(low), _NO_END if text.endswith("+") else int(high if dash else low))


class Field(NamedTuple):
    """One field of a structure. `kind` is a scalar's type or a structure's name; `tag` is -1 if the field is
    tagged in no version (KIP-482). `default` is a value, None for null, or MADE for a new empty array or
    structure.
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
    """The definition of a request, a response, a header, or the key or value of a record. `structs` has the
    fields of each structure of the message, by the structure's name; the body has the message's name.
    """

    name: str
    api_key: int
    kind: str
    valid: Versions
    flexible: Versions
    structs: dict[str, tuple[Field, ...]]


def snake_case(name: str) -> str:
    """Return a name in snake case: `TransactionTimeoutMs` becomes `transaction_timeout_ms`."""
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
    loader: Any = __spec__.loader if __spec__ else None  # the loader also reads from a zip archive
    data = loader.get_data(os.path.join(os.path.dirname(__file__), "messages.json.gz"))
    return _Messages(dict(line.split(" ", 1) for line in zlib.decompress(data, _GZIP).decode().splitlines()))


def message(name: str) -> Message:
    """Return a message's definition. Raises KeyError if there is no such message."""
    return messages()[name]


def _message(definition: dict[str, Any]) -> Message:
    structs: dict[str, tuple[Field, ...]] = {}
    for each in definition.get("commonStructs", ()):
        _collect(each["name"], each["fields"], structs)
    _collect(definition["name"], definition.get("fields", []), structs)
    valid = versions(definition["validVersions"])
    if definition.get("latestVersionUnstable"):
        valid = Versions(valid.low, valid.high - 1)
    return Message(
        definition["name"],
        definition.get("apiKey", -1),
        definition["type"],
        valid,
        versions(definition.get("flexibleVersions")),
        structs,
    )


def _collect(name: str, fields: list[dict[str, Any]], structs: dict[str, tuple[Field, ...]]) -> None:
    structs[name] = tuple(map(_field, fields))
    for each in fields:
        if "fields" in each:
            _collect(each["type"].removeprefix("[]"), each["fields"], structs)


def _field(definition: dict[str, Any]) -> Field:
    kind = definition["type"].removeprefix("[]")
    tagged = versions(definition.get("taggedVersions"))
    return Field(
        snake_case(definition["name"]),
        kind,
        definition["type"].startswith("[]"),
        versions(definition.get("versions") or definition.get("taggedVersions")),
        versions(definition.get("nullableVersions")),
        tagged,
        definition.get("tag", -1),
        _default(definition, kind),
    )


def _default(definition: dict[str, Any], kind: str) -> Any:
    default = definition.get("default")
    if default == "null":
        return None
    if definition["type"].startswith("[]") or kind not in SCALARS:
        return MADE
    if default is None or default == "":
        return SCALARS[kind]
    if kind == "bool":
        return str(default).lower() == "true"
    if kind.startswith(("int", "uint")):
        return int(str(default), 0)
    return float(default) if kind == "float64" else default
