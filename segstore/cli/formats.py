"""How `consume` prints records. Nothing on disk. Threads: any; functions without state."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from segstore.records import Records


def ndjson(records: Records, partition: int) -> bytes:
    """An object a line, which `produce` takes back. What is no UTF-8 is base64, and a field says so."""
    lines = []
    for record in records:
        row: dict[str, object] = {
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
        }
        for name, data in (("key", record.key), ("value", record.value)):
            text, encoding = as_text(data)
            row[name] = text
            if encoding:
                row[f"{name}_encoding"] = encoding
        if record.headers:
            row["headers"] = [_header(name, value) for name, value in record.headers]
        lines.append(json.dumps(row, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines).encode()


def values(records: Records, partition: int) -> bytes:
    """A line a value; null is an empty one."""
    return b"".join(b"%b\n" % (value or b"") for value in records.values)


def raw(records: Records, partition: int) -> bytes:
    """The bytes of the values, nothing between them."""
    return b"".join(value or b"" for value in records.values)


FORMATS: dict[str, Callable[[Records, int], bytes]] = {"ndjson": ndjson, "raw": raw, "values": values}


def as_text(data: bytes | None) -> tuple[str | None, str | None]:
    """(text, None) for UTF-8 and null, else (base64, "base64")."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _header(name: str, value: bytes | None) -> list[str | None]:
    text, encoding = as_text(value)
    return [name, text, encoding] if encoding else [name, text]
