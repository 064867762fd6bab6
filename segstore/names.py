"""Formats and parses the names of all files and directories of a store; no other module does this. This
module touches no files.

A segment's file has the name "<base offset, 20 digits><suffix>". A partition's directory has the name
"<topic>-<partition>"; after the deletion of the partition it has the name
"<topic>-<partition>.<32 hex digits>-delete" (org.apache.kafka.storage.internals.log: LogFileUtils,
UnifiedLog). A parsing function accepts exactly the names that the formatting function returns, and returns
None for any other name.

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

# These are second suffixes, after ".log" for example. `storage.segment.segment_files` explains them.
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
RESERVE = "reserve"  # A number follows in the file's name.
ROLE = "role"
PROMOTION = "promotion"
LET_GO = "let-go"
SCRAM = "scram.json"
SCRAM_COPY = "scram.copy"
SHARED = "shared"
TOPICS = "topics"
SWEEPS = "sweeps.json"
STANDBY = "standby"

# These are names, and suffixes of names, in the inbox. `storage.inbox` and `storage.staging` explain them.
SEALED = "sealed"
GATHERED = "gathered"
OWNER = "owner"
MANIFEST = ".manifest"
INTENT = ".intent"
JOINED = ".joined"
RESULT = ".result"
BATCHES = ".batches"

MAX_NAME = 255
"""The length of the longest name, in bytes, that Linux file systems allow."""
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
# The base64 text of 16 bytes has 21 characters with 6 bits each, and one whose last four bits are 0.
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")
_ZERO_ID = "A" * 22
_RESERVED_IDS = frozenset({uuid.UUID(int=0), uuid.UUID(int=1)})


def below(directory: str, name: str) -> str:
    """Return the path of the file `name` in a directory, as os.path.join does for a name without slashes."""
    return f"{directory}{name}" if directory.endswith("/") else f"{directory}/{name}"


# --- segments ----------------------------------------------------------------


def segment_file(base_offset: int, suffix: str) -> str:
    """Return the name of a file of the segment with this base offset, or of the producer snapshot at this
    offset.
    """
    return f"{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Return (base offset, suffix) from the name of a segment's file, such as (0, ".log.swap"); None for any
    other name.
    """
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None or int(match[1]) > MAX_OFFSET:
        return None
    return int(match[1]), match[2]


def segment_files(listed: Iterable[str]) -> list[tuple[int, str]]:
    """Return (base offset, suffix) for each name in `listed` that is the name of a segment's file."""
    parsed = []
    for name in listed:
        match = _SEGMENT_FILE.fullmatch(name)
        if match is not None and int(match[1]) <= MAX_OFFSET:
            parsed.append((int(match[1]), match[2]))
    return parsed


def has_log(listed: Iterable[str]) -> bool:
    """Return whether one of the names in `listed` is that of a segment's log file."""
    return any(suffix == LOG for _, suffix in segment_files(listed))


# --- snapshots of the metadata -----------------------------------------------


def metadata_snapshot(end_offset: int, epoch: int) -> str:
    """Return the name of a snapshot of the metadata log. The snapshot has the state after all records below
    `end_offset`; the last of them has the leader epoch `epoch` (org.apache.kafka.snapshot.Snapshots).
    """
    return f"{end_offset:020d}-{epoch:010d}{METADATA_SNAPSHOT}"


def parse_metadata_snapshot(name: str) -> tuple[int, int, str] | None:
    """Return (end offset, epoch, suffix) from the name of a metadata snapshot; None for any other name. The
    suffix is ".checkpoint", ".checkpoint.part" or ".checkpoint.deleted". In names that end with ".part" a
    number may precede the suffix, as a broker writes them.
    """
    match = _METADATA_SNAPSHOT.fullmatch(name)
    if match is None or int(match[1]) > MAX_OFFSET or int(match[2]) > INT32_MAX:
        return None
    return int(match[1]), int(match[2]), match[3]


# --- topics and partitions ---------------------------------------------------


def check_topic(name: str) -> str:
    """Return `name` if it follows Kafka's rules for topics (org.apache.kafka.common.internals.Topic).

    If it does not, raises InvalidTopicError, which names the rules. Raises InvalidTypeError if `name` is not
    a str.
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
    """Return the name of a partition's directory in the directory of the store."""
    return f"{topic}-{partition}"


def parse_partition_dir(name: str) -> tuple[str, int] | None:
    """Return (topic, partition) from the name of a partition's directory; None for any other name, including
    that of a deleted partition's directory.
    """
    match = _PARTITION_DIR.fullmatch(name)
    if match is None or not _is_topic(match[1]) or int(match[2]) > MAX_PARTITION:
        return None
    return match[1], int(match[2])


def deleted_dir(topic: str, partition: int, uuid_hex: str) -> str:
    """Return the name for the directory of a deleted partition. The directory has this name until its files
    are removed. If the name would be too long, the topic is shortened in it.
    """
    ending = f"-{partition}.{uuid_hex}-delete"
    return topic[: MAX_NAME - len(ending)] + ending


def is_deleted_dir(name: str) -> bool:
    """Return whether a name is one that `deleted_dir` returns: such a directory may be removed."""
    return len(name) <= MAX_NAME and _DELETED_DIR.fullmatch(name) is not None


# --- topic ids ---------------------------------------------------------------


def new_topic_id(make_uuid: Callable[[], uuid.UUID] = uuid.uuid4) -> str:
    """Return a new topic id as text, as Kafka writes it (org.apache.kafka.common.Uuid): 16 bytes as 22
    characters of base64url.

    As in Kafka, the id is not a reserved id. It does not begin with "-" either: on a command line it would
    look like an option.
    """
    while True:
        made = make_uuid()
        text = base64.urlsafe_b64encode(made.bytes).decode().rstrip("=")
        if made not in _RESERVED_IDS and not text.startswith("-"):
            return text


def is_topic_id(text: str) -> bool:
    """Return whether a text is a topic id in base64url, other than the zero id."""
    return text != _ZERO_ID and _TOPIC_ID.fullmatch(text) is not None


def topic_id_bytes(topic_id: str) -> bytes:
    """Return the 16 bytes of a topic id."""
    return base64.urlsafe_b64decode(topic_id + "==")


def topic_id_of(data: bytes) -> str:
    """Return the topic id as text. Return "" if `data` does not have 16 bytes, or is the zero id."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=") if len(data) == 16 and any(data) else ""


def partition_metadata(topic_id: str) -> bytes:
    """Return the content of the file partition.metadata. As in Kafka, no newline ends the last line."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def parse_partition_metadata(data: bytes, where: str = PARTITION_METADATA) -> str:
    """Return the topic id in the content of a file partition.metadata. Raises CorruptCheckpointError, whose
    `file` is `where`, if the content is invalid.
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
    """Return whether a name in the inbox is that of a stager's directory."""
    return _STAGER.fullmatch(name) is not None


def staged_file(number: int) -> str:
    """Return the name of a stager's file with this number."""
    return f"{number:08d}{BATCHES}"


def is_staged_file(name: str) -> bool:
    """Return whether a name is one that `staged_file` returns."""
    return _STAGED.fullmatch(name) is not None


def manifest_stem(sequence: int, digest: str, nonce: str) -> str:
    """Return the stem that the names of a manifest, its intent and its result have in common. The writer
    appends the records of manifests in the order of the manifests' names.
    """
    return f"{sequence:020d}-{digest}-{nonce}"


def parse_of_manifest(name: str) -> tuple[str, int, str] | None:
    """Return (stem, sequence, suffix) from the name of a manifest, of its intent, of its list of joined
    segments, or of its result; None for any other name.
    """
    match = _OF_MANIFEST.fullmatch(name)
    return None if match is None else (match[1], int(match[2]), match[3])
