"""Kafka's metadata records, as bytes and as values (Kafka: MetadataRecordSerde).

A record begins with the frame version 1, its type and its version, all unsigned varints; then comes the
message that has the name of the class. Ids of topics, directories and incarnations are text in Kafka's
base64. Fields of Kafka's message that the class lacks are skipped. Nothing is on disk. Threads: any; values
and functions without state.
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
    """A metadata record. `KEY` is its type (Kafka: MetadataRecordType). `VERSION` is the version that is
    written; all versions of its message can be read.
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
    """The end of a broker's registration."""

    KEY, VERSION = 1, 0
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True)
class BrokerRegistrationChangeRecord(MetadataRecord):
    """A change of a broker's registration. `fenced` is 1 for fenced and -1 for unfenced,
    `in_controlled_shutdown` is 1 for the beginning of a shutdown; 0 is no change.
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
    """A change of a partition. It raises the partition epoch by 1. If it sets `leader`, it raises the leader
    epoch, too. None, a leader of -2 and a recovery state of -1 mean no change.
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
    """A new value of a setting; None removes the setting. `resource_type` is 2 for a topic."""

    KEY, VERSION = 4, 0
    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True)
class FeatureLevelRecord(MetadataRecord):
    """A new level of a feature."""

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
    """Encode a record in its version `VERSION`."""
    kind = type(record)
    values = {field.name: _to_wire(field, getattr(record, field.name)) for field in _fields(kind.KEY)}
    out = bytearray().join(map(uvarint, (FRAME_VERSION, kind.KEY, kind.VERSION)))
    encode_body(structs(kind.__name__)(**values), kind.VERSION, out)
    return bytes(out)


def decode(data: bytes) -> MetadataRecord:
    """Decode a record. Raises UnsupportedVersionError for an unknown type or version, and CorruptRecordError
    for bytes that are no metadata record.
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
    """Return the fields of a record's message that its class has, too."""
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
