"""Kafka's metadata records, as bytes and as values (Kafka: MetadataRecordSerde).

A record begins with the frame version 1, its type and its version, all unsigned varints; behind them is the
message of the class's name. Ids of topics, directories and incarnations are text in Kafka's base64. A record
of Kafka's may have more fields than its class: these are passed over.
Threads: any; values and functions without state.
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
    """A metadata record. `KEY` is its type (Kafka: MetadataRecordType), `VERSION` the version that is
    written; newer ones of its message are read too.
    """

    KEY: ClassVar[int] = -1
    VERSION: ClassVar[int] = 0


@dataclass(frozen=True)
class RegisterBrokerRecord(MetadataRecord):
    """A broker has registered. `log_dirs` has the ids of its directories."""

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
    """A broker is registered no more."""

    KEY, VERSION = 1, 0
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True)
class BrokerRegistrationChangeRecord(MetadataRecord):
    """A broker was fenced (1) or unfenced (-1), or begins to shut down (1); 0 stands for no change."""

    KEY, VERSION = 17, 2
    broker_id: int
    broker_epoch: int
    fenced: int = 0
    in_controlled_shutdown: int = 0
    log_dirs: tuple[str, ...] = ()


@dataclass(frozen=True)
class TopicRecord(MetadataRecord):
    """A topic was created."""

    KEY, VERSION = 2, 0
    name: str
    topic_id: str


@dataclass(frozen=True)
class PartitionRecord(MetadataRecord):
    """The whole state of a partition. `leader_recovery_state` is 1 after an unclean election, else 0;
    `directories` has one id for each replica.
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
    """A change of a partition, whose partition epoch it counts; with `leader` its leader epoch too. None, -2
    and a recovery state of -1 stand for no change.
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
    """A topic was deleted."""

    KEY, VERSION = 9, 0
    topic_id: str


@dataclass(frozen=True)
class ConfigRecord(MetadataRecord):
    """A setting was made, or with None removed. `resource_type` is 2 for a topic."""

    KEY, VERSION = 4, 0
    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True)
class FeatureLevelRecord(MetadataRecord):
    """A feature has this level from now on."""

    KEY, VERSION = 12, 0
    name: str
    feature_level: int


@dataclass(frozen=True)
class NoOpRecord(MetadataRecord):
    """Nothing: the metadata log is alive (KIP-835)."""

    KEY, VERSION = 20, 0


# --- records -----------------------------------------------------------------------------------

_BY_KEY = {kind.KEY: kind for kind in MetadataRecord.__subclasses__()}


def encode(record: MetadataRecord) -> bytes:
    """Return a record's bytes, in the version `VERSION`."""
    kind = type(record)
    values = {field.name: _to_wire(field, getattr(record, field.name)) for field in _fields(kind.KEY)}
    out = bytearray().join(map(uvarint, (FRAME_VERSION, kind.KEY, kind.VERSION)))
    encode_body(structs(kind.__name__)(**values), kind.VERSION, out)
    return bytes(out)


def decode(data: bytes) -> MetadataRecord:
    """Return the record of these bytes. Raises UnsupportedVersionError for a type or version that is not
    known, and CorruptRecordError for bytes that are no metadata record: nothing of the metadata is believed
    then.
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
    """Return the fields of the message that its class has."""
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
    """Return the 16 bytes of a uuid in Kafka's base64."""
    return base64.urlsafe_b64decode(text + "==")


def uuid_text(data: bytes) -> str:
    """Return a uuid of 16 bytes in Kafka's base64."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
