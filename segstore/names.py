"""Every name of a file or directory on disk: parsed and formatted here only. Writes nothing on disk.

Segment files are "<base offset, 20 digits><suffix>", partition directories "<topic>-<partition>",
deleted ones "<topic>-<partition>.<32 hex digits>-delete" (org.apache.kafka.storage.internals.log.
LogFileUtils and UnifiedLog). Parsing takes back exactly what formatting makes, and nothing else:
a name of somebody else's is None, never a guess.

Threads: any; functions without state.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections.abc import Callable

from segstore.errors import CorruptCheckpointError, InvalidTopicError, InvalidTypeError

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"

# What a suffix may carry in addition: see `storage.segment.segment_files` for the states.
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
TEMPORARY = ".tmp"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
OFFSET_CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

OURS = ".segstore"
ADOPTED = "adopted"
ADOPTED_COPY = "adopted.copy"
CHECKPOINTS = "checkpoints"
ENDS = "ends"
INBOX = "inbox"
PRODUCER_IDS = "producer-ids"
QUARANTINE = "quarantine"
QUOTAS = "quotas.json"
QUOTAS_COPY = "quotas.copy"
TOPICS = "topics"
SWEEPS = "sweeps.json"

# Within the inbox: see `storage.inbox` and `storage.staging`.
SEALED = "sealed"
GATHERED = "gathered"
OWNER = "owner"
MANIFEST = ".manifest"
INTENT = ".intent"
RESULT = ".result"
BATCHES = ".batches"

MAX_NAME = 255
"""Bytes that Linux file systems allow in one name."""
MAX_TOPIC = 249
MAX_OFFSET = (1 << 63) - 1
MAX_PARTITION = (1 << 31) - 1

_SEGMENT_FILE = re.compile(
    r"([0-9]{20})(\.(?:log|index|timeindex|txnindex|snapshot)(?:\.(?:deleted|cleaned|swap|tmp))?)"
)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PARTITION_DIR = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]{0,9})")
_DELETED_DIR = re.compile(r"[a-zA-Z0-9._-]+-[0-9]+\.[0-9a-f]{32}-delete")
_METADATA = re.compile(rb"version:\s+([0-9]{1,9})\ntopic_id:\s+([A-Za-z0-9_-]+)\n?")
_STAGER = re.compile(r"[0-9a-f]{32}")
_STAGED = re.compile(r"[0-9]{8}\.batches")
_OF_MANIFEST = re.compile(r"(([0-9]{20})-[0-9a-f]{16}-[0-9a-f]{16})(\.(?:manifest|intent|result))")
_RESERVED_IDS = frozenset({uuid.UUID(int=0), uuid.UUID(int=1)})


# --- segments ----------------------------------------------------------------


def segment_file(base_offset: int, suffix: str) -> str:
    """The name of one of a segment's files, or of the snapshot at an offset."""
    return f"{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """(base offset, suffix) of a segment's file, as (0, ".log.swap"); None for any other name."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None or int(match[1]) > MAX_OFFSET:
        return None
    return int(match[1]), match[2]


# --- topics and partitions ---------------------------------------------------


def check_topic(name: str) -> str:
    """The name, where it keeps Kafka's rules (org.apache.kafka.common.internals.Topic).

    InvalidTopicError names what is allowed; InvalidTypeError for what is no str.
    """
    if not isinstance(name, str):
        raise InvalidTypeError(f"a topic's name must be a str, not {type(name).__name__}")
    if not _is_topic(name):
        raise InvalidTopicError(
            f"{name!r} can't be a topic's name: 1 to {MAX_TOPIC} of a-z, A-Z, 0-9, '.', '_' and '-', "
            "but not '.' or '..'"
        )
    return name


def _is_topic(name: str) -> bool:
    return len(name) <= MAX_TOPIC and name not in (".", "..") and _TOPIC.fullmatch(name) is not None


def partition_dir(topic: str, partition: int) -> str:
    """The directory of a partition, within the root."""
    return f"{topic}-{partition}"


def parse_partition_dir(name: str) -> tuple[str, int] | None:
    """(topic, partition) of a live partition's directory; None for any other name."""
    match = _PARTITION_DIR.fullmatch(name)
    if match is None or not _is_topic(match[1]) or int(match[2]) > MAX_PARTITION:
        return None
    return match[1], int(match[2])


def deleted_dir(topic: str, partition: int, uuid_hex: str) -> str:
    """What a partition's directory is renamed to before its files go; the topic is cut where it must be."""
    ending = f"-{partition}.{uuid_hex}-delete"
    return topic[: MAX_NAME - len(ending)] + ending


def is_deleted_dir(name: str) -> bool:
    """True for what `deleted_dir` makes, whose files may be removed."""
    return len(name) <= MAX_NAME and _DELETED_DIR.fullmatch(name) is not None


# --- topic ids ---------------------------------------------------------------


def new_topic_id(make_uuid: Callable[[], uuid.UUID] = uuid.uuid4) -> str:
    """A topic id as Kafka writes it (org.apache.kafka.common.Uuid): 22 characters, 16 bytes in base64url.

    As Kafka's it is none of the reserved ids and does not begin with "-", which command lines would mistake.
    """
    while True:
        made = make_uuid()
        text = base64.urlsafe_b64encode(made.bytes).decode().rstrip("=")
        if made not in _RESERVED_IDS and not text.startswith("-"):
            return text


def is_topic_id(text: str) -> bool:
    """True for 16 bytes in the canonical form of `new_topic_id`, except those of the zero id."""
    try:
        data = base64.urlsafe_b64decode(text + "==")
    except (binascii.Error, ValueError):
        return False
    canonical = base64.urlsafe_b64encode(data).decode().rstrip("=")
    return len(data) == 16 and canonical == text and any(data)


def topic_id_bytes(topic_id: str) -> bytes:
    """The 16 bytes of a topic id."""
    return base64.urlsafe_b64decode(topic_id + "==")


def topic_id_of(data: bytes) -> str:
    """The topic id of 16 bytes; "" for any other number of them, and for the zero id."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=") if len(data) == 16 and any(data) else ""


def partition_metadata(topic_id: str) -> bytes:
    """The content of partition.metadata; like Kafka's it ends without a newline."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def parse_partition_metadata(data: bytes, where: str = PARTITION_METADATA) -> str:
    """The topic id in the content of partition.metadata. CorruptCheckpointError, which names `where`."""
    match = _METADATA.fullmatch(data)
    if match is None:
        raise CorruptCheckpointError(where, 1, 'not the lines "version: 0" and "topic_id: ..."')
    if int(match[1]) != 0:
        raise CorruptCheckpointError(where, 1, f"version {int(match[1])} is unknown, 0 is known")
    topic_id = match[2].decode()
    if not is_topic_id(topic_id):
        raise CorruptCheckpointError(where, 2, f"{topic_id!r} is no topic id")
    return topic_id


# --- the inbox ---------------------------------------------------------------


def is_stager(name: str) -> bool:
    """True for a stager's directory within the inbox."""
    return _STAGER.fullmatch(name) is not None


def staged_file(number: int) -> str:
    """The name of a stager's file of that number."""
    return f"{number:08d}{BATCHES}"


def is_staged_file(name: str) -> bool:
    """True for what `staged_file` makes."""
    return _STAGED.fullmatch(name) is not None


def manifest_stem(sequence: int, digest: str, nonce: str) -> str:
    """What the files about one sealed manifest are called: they are adopted in the order of these names."""
    return f"{sequence:020d}-{digest}-{nonce}"


def parse_of_manifest(name: str) -> tuple[str, int, str] | None:
    """(stem, sequence, suffix) of a manifest, its intent or its result; None for any other name."""
    match = _OF_MANIFEST.fullmatch(name)
    return None if match is None else (match[1], int(match[2]), match[3])
