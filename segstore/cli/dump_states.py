"""Converts records of share groups to the JSON that Kafka's tools print. For records of `__share_group_state`
the tool is ShareGroupStateMessageFormatter, for records of `__consumer_offsets` it is
GroupMetadataMessageFormatter. Nothing is on disk. Threads: any.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from segstore import names
from segstore.errors import UnsupportedVersionError
from segstore.protocol.definitions import message
from segstore.protocol.record_codec import decode_key, decode_value, kind_of, prefix_of

_MESSAGES = {
    "__share_group_state": {0: "ShareSnapshot", 1: "ShareUpdate"},
    "__consumer_offsets": {
        10: "ShareGroupMemberMetadata",
        11: "ShareGroupMetadata",
        12: "ShareGroupTargetAssignmentMetadata",
        13: "ShareGroupTargetAssignmentMember",
        14: "ShareGroupCurrentMemberAssignment",
        15: "ShareGroupStatePartitionMetadata",
    },
}
"""Kafka's names of messages, by topic, and by the type number at the beginning of a record's key. "Key" or
"Value" must be appended to a name.
"""


class StateText(NamedTuple):
    """The key and the value of a record as text. `value` is None if the record is a tombstone."""

    key: str
    value: str | None


def topic_of_states(path: str) -> str | None:
    """Return the topic that a file belongs to, None if records of this topic can't be converted."""
    parsed = names.parse_partition_dir(os.path.basename(os.path.dirname(os.path.abspath(path))))
    return parsed[0] if parsed is not None and parsed[0] in _MESSAGES else None


def state_text(topic: str, key: bytes | None, value: bytes | None) -> StateText | None:
    """Return the key and the value of a record as JSON text. Return None if the record's type is not in
    `_MESSAGES`, or if its version is unknown.
    """
    try:
        kind = kind_of(key or b"", "a share group")
        name = _MESSAGES[topic].get(kind)
        if name is None:
            return None
        text = _text("type", kind, _data(f"{name}Key", decode_key(f"{name}Key", key or b""), 0))
        if value is None:
            return StateText(text, None)
        version = prefix_of(value)
        data = _data(f"{name}Value", decode_value(f"{name}Value", value), version)
        return StateText(text, _text("version", version, data))
    except (ValueError, UnsupportedVersionError):
        return None


def _text(name: str, number: int, data: dict[str, Any]) -> str:
    return json.dumps({name: number, "data": data}, separators=(",", ":"), ensure_ascii=False)


def _data(name: str, body: Any, version: int) -> dict[str, Any]:
    """Return the fields of a structure in the message `name`. Tagged fields that have their default values
    are left out (Kafka: JsonConverter).
    """
    found = {}
    for field in message(name).structs[type(body).__name__]:
        held = getattr(body, field.name)
        if version in field.tagged and held == field.default:
            continue
        if field.is_struct:
            held = [_data(name, each, version) for each in held]
        elif field.kind == "uuid":
            held = names.topic_id_of(held)
        found[_camel(field.name)] = held
    return found


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
