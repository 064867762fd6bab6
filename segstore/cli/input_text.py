"""NDJSON: objects that say what is key and value, as `consume` prints them, or objects that are the value.

On disk: nothing of its own. Threads: one.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from segstore.cli.input_chunk import Chunk, InputError, InputOptions, line_blocks, numbered
from segstore.cli.options import parse_time

FIELDS = {
    "key",
    "value",
    "headers",
    "timestamp",
    "partition",
    "key_encoding",
    "value_encoding",
    "topic",
    "offset",
}


def ndjson(stream: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    """A record an object. InputError names the line."""
    plain = options.plain or options.key_field or options.timestamp_field or options.value_field
    for block in numbered(line_blocks(stream)):
        chunk = Chunk([], [], [], [], [])
        for number, line in block:
            try:
                held = json.loads(line)
                if not isinstance(held, dict):
                    raise ValueError("no JSON object")
                _add_plain(chunk, line, held, options) if plain else _add_record(chunk, held)
            except (ValueError, TypeError) as error:
                raise InputError(f"line {number}: {error}: {line[:80]!r}") from error
        yield chunk


def _add_plain(chunk: Chunk, line: bytes, held: dict[str, Any], options: InputOptions) -> None:
    key, stamp = options.key_field, options.timestamp_field
    chunk.values.append(line if options.value_field is None else as_bytes(_get(held, options.value_field)))
    chunk.keys.append(None if key is None else as_bytes(_get(held, key)))
    chunk.timestamps.append(None if stamp is None else parse_time(_get(held, stamp)))
    _add_rest(chunk, [], None)


def _get(held: dict[str, Any], name: str) -> Any:
    if name not in held:
        raise ValueError(f"no field {name!r}, there are {', '.join(held)}")
    return held[name]


def _add_record(chunk: Chunk, held: dict[str, Any]) -> None:
    unknown = sorted(held.keys() - FIELDS)
    if unknown or not held.keys() & {"key", "value"}:
        raise ValueError(
            (f"unknown field {unknown[0]!r}" if unknown else "neither key nor value")
            + "; to take whole objects as values say --plain, --key-field or --timestamp-field"
        )
    stamp, partition = held.get("timestamp"), held.get("partition")
    if partition is not None and type(partition) is not int:
        raise ValueError(f"partition {partition!r} is no integer")
    chunk.values.append(as_bytes(held.get("value"), held.get("value_encoding")))
    chunk.keys.append(as_bytes(held.get("key"), held.get("key_encoding")))
    chunk.timestamps.append(None if stamp is None else parse_time(stamp))
    _add_rest(chunk, _headers(held.get("headers") or []), partition)


def _add_rest(chunk: Chunk, headers: list[tuple[str, bytes | None]], partition: int | None) -> None:
    assert chunk.headers is not None
    assert chunk.partitions is not None
    chunk.headers.append(headers)
    chunk.partitions.append(partition)


def _headers(held: Any) -> list[tuple[str, bytes | None]]:
    pairs = held.items() if isinstance(held, dict) else held
    found = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) not in (2, 3) or not isinstance(pair[0], str):
            raise ValueError('headers must be {"name": "value"} or [["name", "value"]]')
        found.append((pair[0], as_bytes(*pair[1:])))
    return found


def as_bytes(value: Any, encoding: str | None = None) -> bytes | None:
    """Text as UTF-8, None as null, anything else as JSON; `encoding` "base64" for bytes. ValueError."""
    if value is None:
        return None
    if encoding is None:
        return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()
    if encoding != "base64":
        raise ValueError(f"encoding {encoding!r}: base64 is known")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64: {error}") from error
