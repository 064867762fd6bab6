"""Kafka's metadata records: a class for each, and functions that encode and decode them (Kafka:
MetadataRecordSerde).

The bytes of a record are three unsigned varints (the frame version 1, the type and the version of the
record), and a Kafka message with the name of the class. Ids of topics, directories and incarnations are str
in Kafka's base64. A decoded record has only the fields of its class, which lacks some fields of Kafka's
message. Nothing is on disk. Threads: any.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from segstore.errors import CorruptRecordError, InvalidRequestError, UnsupportedVersionError
from segstore.protocol.codec import decode_at, structs
from segstore.protocol.codec import encode as encode_body
from segstore.protocol.definitions import Field, message
from segstore.protocol.primitives import read_uvarint, uvarint

FRAME_VERSION = 1


@dataclass(frozen=True)
class MetadataRecord:
    """A metadata record. `KEY` is the type of the record (Kafka: MetadataRecordType). `VERSION` is the
    version that `encode` writes. `decode` can read all versions.
    """

    KEY: ClassVar[int] = -1
    VERSION: ClassVar[int] = 0


@dataclass(frozen=True)
class RegisterBrokerRecord(MetadataRecord):
    """The registration of a broker. `log_dirs` has the ids of its directories."""

    KEY, VERSION = 0, 3
    broker_id: int
    incarnation_id: str
    broker_epoch: int
    fenced: bool = True
    in_controlled_shutdown: bool = False
    rack: str | None = None
    log_dirs: tuple[str, ...] = ()


@dataclass(frozen=True)
class UnregisterBrokerRecord(MetadataRecord):
    """The removal of a broker's registration."""

    KEY, VERSION = 1, 0
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True)
class BrokerRegistrationChangeRecord(MetadataRecord):
    """A change of a broker's registration. `fenced` is 1 if the broker becomes fenced, -1 if it becomes
    unfenced, and 0 if neither changes. `in_controlled_shutdown` is 1 if the broker begins to shut down, and 0
    if it does not.
    """

    KEY, VERSION = 17, 2
    broker_id: int
    broker_epoch: int
    fenced: int = 0
    in_controlled_shutdown: int = 0
    log_dirs: tuple[str, ...] = ()


@dataclass(frozen=True)
class TopicRecord(MetadataRecord):
    """The creation of a topic."""

    KEY, VERSION = 2, 0
    name: str
    topic_id: str


@dataclass(frozen=True)
class PartitionRecord(MetadataRecord):
    """The whole state of a partition. `leader_recovery_state` is 1 after an unclean election, else 0.
    `directories` has the directory id of each replica.
    """

    KEY, VERSION = 3, 2
    partition_id: int
    topic_id: str
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    leader_recovery_state: int = 0
    directories: tuple[str, ...] = ()
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


NO_LEADER_CHANGE = -2


@dataclass(frozen=True)
class PartitionChangeRecord(MetadataRecord):
    """A change of a partition's state. The record raises the partition epoch by 1. If the record sets
    `leader`, the leader epoch rises by 1, too. A field that is None does not change the state, nor does a
    `leader` of -2 or a `leader_recovery_state` of -1.
    """

    KEY, VERSION = 5, 2
    partition_id: int
    topic_id: str
    isr: tuple[int, ...] | None = None
    leader: int = NO_LEADER_CHANGE
    replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    leader_recovery_state: int = -1
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    directories: tuple[str, ...] | None = None


@dataclass(frozen=True)
class RemoveTopicRecord(MetadataRecord):
    """The deletion of a topic."""

    KEY, VERSION = 9, 0
    topic_id: str


@dataclass(frozen=True)
class ConfigRecord(MetadataRecord):
    """A new value of a setting. The value None removes the setting. `resource_type` is 2 if it is a setting
    of a topic.
    """

    KEY, VERSION = 4, 0
    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True)
class FeatureLevelRecord(MetadataRecord):
    """A new level (version number) of a feature of the cluster."""

    KEY, VERSION = 12, 0
    name: str
    feature_level: int


@dataclass(frozen=True)
class NoOpRecord(MetadataRecord):
    """A record without content, which shows that the metadata log works (KIP-835)."""

    KEY, VERSION = 20, 0


# --- records -----------------------------------------------------------------------------------

_BY_KEY = {kind.KEY: kind for kind in MetadataRecord.__subclasses__()}


def encode(record: MetadataRecord) -> bytes:
    """Encode a record, in the version `VERSION` of its class."""
    kind = type(record)
    values = {field.name: _to_wire(field, getattr(record, field.name)) for field in _fields(kind.KEY)}
    out = bytearray().join(map(uvarint, (FRAME_VERSION, kind.KEY, kind.VERSION)))
    encode_body(structs(kind.__name__)(**values), kind.VERSION, out)
    return bytes(out)


def decode(data: bytes) -> MetadataRecord:
    """Decode a record. Raises UnsupportedVersionError if its type or version is unknown, and
    CorruptRecordError if the bytes are not a metadata record.
    """
    try:
        return _decoded(memoryview(data))
    except (ValueError, IndexError) as error:
        raise CorruptRecordError("a metadata record", 0, 0, str(error)) from error


def _decoded(data: memoryview) -> MetadataRecord:
    frame, at = read_uvarint(data, 0)
    key, at = read_uvarint(data, at)
    version, at = read_uvarint(data, at)
    kind = _BY_KEY.get(key)
    if frame != FRAME_VERSION or kind is None or version not in message(kind.__name__).valid:
        raise UnsupportedVersionError(
            f"metadata record of frame version {frame}, type {key}, version {version}: known are frame "
            f"version {FRAME_VERSION} and the types {sorted(_BY_KEY)}"
        )
    body, end = decode_at(kind.__name__, version, data, at, len(data))
    if end != len(data):
        raise InvalidRequestError(f"{len(data) - end} bytes are left behind the record")
    return kind(**{field.name: _from_wire(field, getattr(body, field.name)) for field in _fields(key)})


@cache
def _fields(key: int) -> tuple[Field, ...]:
    """Return the fields of a Kafka message that the class of the record type `key` has, too."""
    kind = _BY_KEY[key]
    name = kind.__name__
    return tuple(field for field in message(name).structs[name] if field.name in kind.__dataclass_fields__)


def _to_wire(field: Field, value: Any) -> Any:
    if value is None:
        return None
    convert = uuid_bytes if field.kind == "uuid" else _same
    return list(map(convert, value)) if field.is_array else convert(value)


def _from_wire(field: Field, value: Any) -> Any:
    if value is None:
        return None
    convert = uuid_text if field.kind == "uuid" else _same
    return tuple(map(convert, value)) if field.is_array else convert(value)


def _same(value: Any) -> Any:
    return value


def uuid_bytes(text: str) -> bytes:
    """Decode a uuid from Kafka's base64 to 16 bytes."""
    return base64.urlsafe_b64decode(text + "==")


def uuid_text(data: bytes) -> str:
    """Encode the 16 bytes of a uuid in Kafka's base64."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
