"""Formats and parses every name of a file or directory of a store; no other module does this. The module
touches no files.

Segment files are "<base offset, 20 digits><suffix>", partition directories "<topic>-<partition>", those of
deleted partitions "<topic>-<partition>.<32 hex digits>-delete" (org.apache.kafka.storage.internals.log.
LogFileUtils and UnifiedLog). Parsing accepts exactly the names that formatting makes, and returns None for
any other name.

Threads: any; functions without state.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable, Iterable

from segstore.errors import CorruptCheckpointError, InvalidTopicError, InvalidTypeError
from segstore.integers import INT32_MAX, INT64_MAX

LOG = ".log"
COPYING = ".copying"
RESTORING = ".restoring"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
METADATA_SNAPSHOT = ".checkpoint"
PART = ".part"

# A second suffix; `storage.segment.segment_files` describes the states of segment files.
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
TEMPORARY = ".tmp"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
QUORUM_STATE = "quorum-state"
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
CLOSED = "closed"
CLUSTER_ID = "cluster-id"
ENDS = "ends"
FENCE = "fence"
FORMAT = "format"
FULL = "full"
GROUPS = "groups.json"
GROUPS_COPY = "groups.copy"
HOST = "host"
INBOX = "inbox"
LAGS = "lags"
MEMBERS = "members"
PLAIN_EPOCHS = "plain-epochs.json"
PRODUCER_IDS = "producer-ids"
QUARANTINE = "quarantine"
QUOTAS = "quotas.json"
QUOTAS_COPY = "quotas.copy"
RESERVE = "reserve"  # followed by a number
ROLE = "role"
PROMOTION = "promotion"
LET_GO = "let-go"
SCRAM = "scram.json"
SCRAM_COPY = "scram.copy"
SHARED = "shared"
TOPICS = "topics"
SWEEPS = "sweeps.json"
STANDBY = "standby"

# These are names within the inbox: see `storage.inbox` and `storage.staging`.
SEALED = "sealed"
GATHERED = "gathered"
OWNER = "owner"
MANIFEST = ".manifest"
INTENT = ".intent"
JOINED = ".joined"
RESULT = ".result"
BATCHES = ".batches"

MAX_NAME = 255
"""The most bytes that Linux file systems allow in one name."""
MAX_TOPIC = 249
MAX_OFFSET = INT64_MAX
MAX_PARTITION = INT32_MAX

_SEGMENT_FILE = re.compile(
    r"([0-9]{20})(\.(?:log|index|timeindex|txnindex|snapshot)(?:\.(?:deleted|cleaned|swap|tmp))?)"
)
_METADATA_SNAPSHOT = re.compile(
    r"([0-9]{20})-([0-9]{10})(?:-[0-9]+(?=\.checkpoint\.part))?(\.checkpoint(?:\.(?:part|deleted))?)"
)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PARTITION_DIR = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]{0,9})")
_DELETED_DIR = re.compile(r"[a-zA-Z0-9._-]+-[0-9]+\.[0-9a-f]{32}-delete")
_METADATA = re.compile(rb"version:\s+([0-9]{1,9})\ntopic_id:\s+([A-Za-z0-9_-]+)\n?")
_STAGER = re.compile(r"[0-9a-f]{32}")
_STAGED = re.compile(r"[0-9]{8}\.batches")
_OF_MANIFEST = re.compile(r"(([0-9]{20})-[0-9a-f]{16}-[0-9a-f]{16})(\.(?:manifest|intent|joined|result))")
# 16 bytes are 21 characters of 6 bits, and a 22nd character whose last four bits are 0.
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")
_ZERO_ID = "A" * 22
_RESERVED_IDS = frozenset({uuid.UUID(int=0), uuid.UUID(int=1)})


def below(directory: str, name: str) -> str:
    """Return the path of a plain name in a directory, like os.path.join."""
    return f"{directory}{name}" if directory.endswith("/") else f"{directory}/{name}"


# --- segments ----------------------------------------------------------------


def segment_file(base_offset: int, suffix: str) -> str:
    """Return the name of a file of the segment with this base offset, or of the snapshot at this offset."""
    return f"{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Return (base offset, suffix) of a segment's file, such as (0, ".log.swap"); None for any other name."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None or int(match[1]) > MAX_OFFSET:
        return None
    return int(match[1]), match[2]


def segment_files(listed: Iterable[str]) -> list[tuple[int, str]]:
    """Return (base offset, suffix) of each segment file among the names in a directory."""
    parsed = []
    for name in listed:
        match = _SEGMENT_FILE.fullmatch(name)
        if match is not None and int(match[1]) <= MAX_OFFSET:
            parsed.append((int(match[1]), match[2]))
    return parsed


def has_log(listed: Iterable[str]) -> bool:
    """Return whether a log file of a segment is among the names in a directory."""
    return any(suffix == LOG for _, suffix in segment_files(listed))


# --- snapshots of the metadata -----------------------------------------------


def metadata_snapshot(end_offset: int, epoch: int) -> str:
    """Return the name of a metadata snapshot: the state of the log below `end_offset`, whose last record has
    the leader epoch `epoch` (org.apache.kafka.snapshot.Snapshots).
    """
    return f"{end_offset:020d}-{epoch:010d}{METADATA_SNAPSHOT}"


def parse_metadata_snapshot(name: str) -> tuple[int, int, str] | None:
    """Return (end offset, epoch, suffix) of a metadata snapshot; None for any other name. The suffix is
    ".checkpoint", which ".part" or ".deleted" may follow. A broker inserts a number into names of parts.
    """
    match = _METADATA_SNAPSHOT.fullmatch(name)
    if match is None or int(match[1]) > MAX_OFFSET or int(match[2]) > INT32_MAX:
        return None
    return int(match[1]), int(match[2]), match[3]


# --- topics and partitions ---------------------------------------------------


def check_topic(name: str) -> str:
    """Return the name if it follows Kafka's rules (org.apache.kafka.common.internals.Topic).

    Raises InvalidTopicError, which names the rules; InvalidTypeError if it is not a str.
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
    """Return the name of a partition's directory within the root."""
    return f"{topic}-{partition}"


def parse_partition_dir(name: str) -> tuple[str, int] | None:
    """Return (topic, partition) for the directory of a live partition; None for any other name."""
    match = _PARTITION_DIR.fullmatch(name)
    if match is None or not _is_topic(match[1]) or int(match[2]) > MAX_PARTITION:
        return None
    return match[1], int(match[2])


def deleted_dir(topic: str, partition: int, uuid_hex: str) -> str:
    """Return the name that the directory of a deleted partition has until its files are removed. The topic is
    shortened if the name would be too long.
    """
    ending = f"-{partition}.{uuid_hex}-delete"
    return topic[: MAX_NAME - len(ending)] + ending


def is_deleted_dir(name: str) -> bool:
    """Return whether `deleted_dir` made the name; the files of such a directory may be removed."""
    return len(name) <= MAX_NAME and _DELETED_DIR.fullmatch(name) is not None


# --- topic ids ---------------------------------------------------------------


def new_topic_id(make_uuid: Callable[[], uuid.UUID] = uuid.uuid4) -> str:
    """Return a new topic id in Kafka's form (org.apache.kafka.common.Uuid): 16 bytes as 22 characters of
    base64url.

    As in Kafka, the id is none of the reserved ids, and does not begin with "-", because a command line would
    take it for an option.
    """
    while True:
        made = make_uuid()
        text = base64.urlsafe_b64encode(made.bytes).decode().rstrip("=")
        if made not in _RESERVED_IDS and not text.startswith("-"):
            return text


def is_topic_id(text: str) -> bool:
    """Return whether a text has the form of `new_topic_id`, and is not the zero id."""
    return text != _ZERO_ID and _TOPIC_ID.fullmatch(text) is not None


def topic_id_bytes(topic_id: str) -> bytes:
    """Return the 16 bytes of a topic id."""
    return base64.urlsafe_b64decode(topic_id + "==")


def topic_id_of(data: bytes) -> str:
    """Return the topic id of 16 bytes; "" for the zero id, and for any other number of bytes."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=") if len(data) == 16 and any(data) else ""


def partition_metadata(topic_id: str) -> bytes:
    """Return the content of partition.metadata; like Kafka's it ends without a newline."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def parse_partition_metadata(data: bytes, where: str = PARTITION_METADATA) -> str:
    """Return the topic id in the content of partition.metadata. Raises CorruptCheckpointError with the file
    name `where`.
    """
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
    """Return whether this is the name of a stager's directory within the inbox."""
    return _STAGER.fullmatch(name) is not None


def staged_file(number: int) -> str:
    """Return the name of a stager's file with this number."""
    return f"{number:08d}{BATCHES}"


def is_staged_file(name: str) -> bool:
    """Return whether `staged_file` made the name."""
    return _STAGED.fullmatch(name) is not None


def manifest_stem(sequence: int, digest: str, nonce: str) -> str:
    """Return the common stem of the names of a manifest, its intent and its result. Manifests are adopted in
    the order of these names.
    """
    return f"{sequence:020d}-{digest}-{nonce}"


def parse_of_manifest(name: str) -> tuple[str, int, str] | None:
    """Return (stem, sequence, suffix) of the name of a manifest, its intent, its note of joined segments or
    its result; None for any other name.
    """
    match = _OF_MANIFEST.fullmatch(name)
    return None if match is None else (match[1], int(match[2]), match[3])
