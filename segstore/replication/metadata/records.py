"""Kafka's metadata records, as bytes and as values (Kafka: MetadataRecordSerde and the schemas in
metadata/src/main/resources/common/metadata).

A record begins with the frame version 1, its type and its version, all unsigned varints; its fields are in
the flexible form (KIP-482). Epochs are int32 or int64, ids of topics, directories and incarnations are text
in Kafka's base64. Threads: any; values and functions without state.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from segstore.errors import CorruptRecordError, UnsupportedVersionError
from segstore.kafka_schema import Reader, array, int8, int16, int32, int64, string, tags, varint

FRAME_VERSION = 1


@dataclass(frozen=True)
class MetadataRecord:
    """A metadata record. `KEY` is its type (Kafka: MetadataRecordType), `VERSION` the version that is
    written, and the newest that is read.
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


# --- fields ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """How a type of field is written and read."""

    write: Callable[[Any], bytes]
    read: Callable[[Reader], Any]


def _uuid(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def _read_uuid(reader: Reader) -> str:
    raw = int64_pair(reader)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def int64_pair(reader: Reader) -> bytes:
    """Read the 16 bytes of a uuid."""
    return reader.int64().to_bytes(8, "big", signed=True) + reader.int64().to_bytes(8, "big", signed=True)


def _ints(values: tuple[int, ...] | None) -> bytes:
    return array(None if values is None else map(int32, values), compact=True)


def _read_ints(reader: Reader) -> tuple[int, ...] | None:
    return _nullable(reader, reader.int32)


def _uuids(values: tuple[str, ...] | None) -> bytes:
    return array(None if values is None else map(_uuid, values), compact=True)


def _read_uuids(reader: Reader) -> tuple[str, ...] | None:
    return _nullable(reader, lambda: _read_uuid(reader))


def _nullable(reader: Reader, read: Callable[[], Any]) -> tuple[Any, ...] | None:
    count = reader.varint() - 1
    if count > reader.left:
        raise ValueError(f"{count} elements are expected, {reader.left} bytes are left")
    return None if count < 0 else tuple([read() for _ in range(count)])


INT8, INT16 = _Form(int8, Reader.int8), _Form(int16, Reader.int16)
INT32, INT64 = _Form(int32, Reader.int32), _Form(int64, Reader.int64)
BOOL = _Form(lambda value: int8(int(value)), lambda reader: bool(reader.int8()))
UUID = _Form(_uuid, _read_uuid)
STRING = _Form(lambda text: string(text, compact=True), lambda reader: reader.string(compact=True))
NULLABLE = _Form(lambda text: string(text, compact=True), lambda reader: reader.nullable_string(compact=True))
INTS, UUIDS = _Form(_ints, _read_ints), _Form(_uuids, _read_uuids)


class _Left:
    """Stands for a field that segstore neither has nor needs; `form` writes it as `empty`."""

    def __init__(self, empty: bytes, skip: Callable[[Reader], object]) -> None:
        self.empty, self.skip = empty, skip


def _skip_end_point(reader: Reader) -> None:
    reader.string(compact=True)
    reader.string(compact=True)
    reader.int16()
    reader.int16()
    reader.tags()


def _skip_feature(reader: Reader) -> None:
    reader.string(compact=True)
    reader.int16()
    reader.int16()
    reader.tags()


_END_POINTS = _Left(varint(1), lambda r: r.array(lambda: _skip_end_point(r), compact=True))
_FEATURES = _Left(varint(1), lambda r: r.array(lambda: _skip_feature(r), compact=True))
_ZK = _Left(int8(0), Reader.int8)

# The fields of each record in their order, each with the version that brought it; and the tagged ones.
_Field = tuple["str | _Left", "_Form | None", int]
_SCHEMAS: dict[type[MetadataRecord], tuple[tuple[_Field, ...], dict[int, tuple[str, _Form, int]]]] = {
    RegisterBrokerRecord: (
        (
            ("broker_id", INT32, 0),
            (_ZK, None, 2),
            ("incarnation_id", UUID, 0),
            ("broker_epoch", INT64, 0),
            (_END_POINTS, None, 0),
            (_FEATURES, None, 0),
            ("rack", NULLABLE, 0),
            ("fenced", BOOL, 0),
            ("in_controlled_shutdown", BOOL, 1),
        ),
        {0: ("log_dirs", UUIDS, 3)},
    ),
    UnregisterBrokerRecord: ((("broker_id", INT32, 0), ("broker_epoch", INT64, 0)), {}),
    BrokerRegistrationChangeRecord: (
        (("broker_id", INT32, 0), ("broker_epoch", INT64, 0)),
        {0: ("fenced", INT8, 0), 1: ("in_controlled_shutdown", INT8, 1), 2: ("log_dirs", UUIDS, 2)},
    ),
    TopicRecord: ((("name", STRING, 0), ("topic_id", UUID, 0)), {}),
    PartitionRecord: (
        (
            ("partition_id", INT32, 0),
            ("topic_id", UUID, 0),
            ("replicas", INTS, 0),
            ("isr", INTS, 0),
            ("removing_replicas", INTS, 0),
            ("adding_replicas", INTS, 0),
            ("leader", INT32, 0),
            ("leader_epoch", INT32, 0),
            ("partition_epoch", INT32, 0),
            ("directories", UUIDS, 1),
        ),
        {
            0: ("leader_recovery_state", INT8, 0),
            1: ("eligible_leader_replicas", INTS, 2),
            2: ("last_known_elr", INTS, 2),
        },
    ),
    PartitionChangeRecord: (
        (("partition_id", INT32, 0), ("topic_id", UUID, 0)),
        {
            0: ("isr", INTS, 0),
            1: ("leader", INT32, 0),
            2: ("replicas", INTS, 0),
            3: ("removing_replicas", INTS, 0),
            4: ("adding_replicas", INTS, 0),
            5: ("leader_recovery_state", INT8, 0),
            6: ("eligible_leader_replicas", INTS, 2),
            7: ("last_known_elr", INTS, 2),
            8: ("directories", UUIDS, 1),
        },
    ),
    RemoveTopicRecord: ((("topic_id", UUID, 0),), {}),
    ConfigRecord: (
        (
            ("resource_type", INT8, 0),
            ("resource_name", STRING, 0),
            ("name", STRING, 0),
            ("value", NULLABLE, 0),
        ),
        {},
    ),
    FeatureLevelRecord: ((("name", STRING, 0), ("feature_level", INT16, 0)), {}),
    NoOpRecord: ((), {}),
}
_BY_KEY = {kind.KEY: kind for kind in _SCHEMAS}
_DEFAULTS = {kind: {f.name: f.default for f in fields(kind)} for kind in _SCHEMAS}


# --- records -----------------------------------------------------------------------------------


def encode(record: MetadataRecord) -> bytes:
    """Return a record's bytes, in the version `VERSION`. Tagged fields are left out where they have their
    defaults.
    """
    kind = type(record)
    plain, tagged = _SCHEMAS[kind]
    parts = [varint(FRAME_VERSION), varint(kind.KEY), varint(kind.VERSION)]
    for name, form, _ in plain:
        if isinstance(name, _Left) or form is None:
            assert isinstance(name, _Left)
            parts.append(name.empty)
        else:
            parts.append(form.write(getattr(record, name)))
    changed = {
        tag: form.write(getattr(record, name))
        for tag, (name, form, _) in tagged.items()
        if getattr(record, name) != _DEFAULTS[kind][name]
    }
    return b"".join(parts) + tags(changed)


def decode(data: bytes) -> MetadataRecord:
    """Return the record of these bytes. Raises UnsupportedVersionError for a type or version that is not
    known, and CorruptRecordError for bytes that are no metadata record: nothing of the metadata is believed
    then.
    """
    try:
        reader = Reader(data)
        frame, key, version = reader.varint(), reader.varint(), reader.varint()
        if frame != FRAME_VERSION or key not in _BY_KEY or version > _BY_KEY[key].VERSION:
            raise UnsupportedVersionError(
                f"metadata record of frame version {frame}, type {key}, version {version}: known are frame "
                f"version {FRAME_VERSION} and the types {sorted(_BY_KEY)}"
            )
        return _decoded(_BY_KEY[key], reader, version)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError("a metadata record", 0, 0, str(error)) from error


def _decoded(kind: type[MetadataRecord], reader: Reader, version: int) -> MetadataRecord:
    plain, tagged = _SCHEMAS[kind]
    held: dict[str, Any] = {}
    for name, form, since in plain:
        if since > version:
            continue
        if isinstance(name, _Left):
            name.skip(reader)
        elif form is not None:
            held[name] = form.read(reader)
    for tag, data in reader.tags().items():
        if tag in tagged and tagged[tag][2] <= version:
            name, form, _ = tagged[tag]
            held[name] = form.read(Reader(data))
    if reader.left:
        raise ValueError(f"{reader.left} bytes are left behind the record")
    return kind(**held)
