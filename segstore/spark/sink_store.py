"""`StagingSink`: the part of a sink that accesses the store. Tasks stage rows: they write them into the
store's inbox. The driver seals the staged rows: it submits them to be appended. This module also has the
sink's options, and needs no JVM.

On disk: the store's inbox, through `Stager`, `seal` and `abort`. Threads: one at a time; a `StagingSink` is
immutable, and is pickled and sent to the tasks.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from segstore import names as file_names
from segstore.coordinator.open_replicated import open_replicated
from segstore.errors import (
    ConfigError,
    IdempotencyConflictError,
    InvalidTopicError,
    KafkaTimeoutError,
    SegstoreError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from segstore.files import Files, locks
from segstore.spark.columns import HEADERS
from segstore.spark.offsets import by_lower_names, duration_ms, flag
from segstore.spark.options import needs_broker, store_paths, store_witness
from segstore.spark.planned_batch import REMEDY, id_of, source_offsets
from segstore.spark.sink_rows import Divider, columns_of
from segstore.storage.context import os_errors, wall_clock
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.topic_files import StagersTopics
from segstore.storage.meta.topic_info import check_not_internal
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.staging import Adoption, Staged, Stager, abort, seal

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from segstore.storage.store.store import Store

log = logging.getLogger("segstore.spark")

GATHERED_BYTES = 8 << 20
"""Batches of rows are joined up to about this size, in bytes, before they are divided among partitions, so
that each partition gets larger batches.
"""


@dataclass(frozen=True)
class StagingSink:
    """Stages rows in the directory `path`, which is a store or one directory of a replicated store, and
    submits them to be appended.

    `topic`, `fail_on_data_loss` and `checkpoint` are as in SinkOptions. The process that has the store open
    for writing appends the submitted rows to the log. If no process has it open, `seal` opens the store
    itself; if `directories` is not empty, it opens the replicated store in `directories`, with `witness`.
    Only tests set `files`.
    """

    path: str
    topic: str | None
    seal_timeout_ms: int
    files: Files | None = None
    directories: tuple[str, ...] = ()
    witness: str | None = None
    checkpoint: str | None = None
    fail_on_data_loss: bool = True

    @classmethod
    def of(cls, options: SinkOptions) -> StagingSink:
        """Return a sink for these options, which stages rows in the first writable directory."""
        paths = options.paths
        path = next(filter(_takes_files, paths), paths[0]) if len(paths) > 1 else paths[0]
        several = paths if len(paths) > 1 else ()
        return cls(
            path,
            options.topic,
            options.seal_timeout_ms,
            directories=several,
            witness=options.witness,
            checkpoint=options.checkpoint,
            fail_on_data_loss=options.fail_on_data_loss,
        )

    # --- the driver, before ------------------------------------------------------------------

    def check(self, columns: Sequence[str]) -> None:
        """Raise ConfigError if rows with these columns can't be written to the store. The driver calls this
        before tasks start.
        """
        files = self.files or Files()
        try:
            with os_errors():
                if not files.exists(self.path):
                    raise ConfigError(
                        f'option path={self.path!r}: no such store; segstore.open with mode="rw" makes it'
                    )
                topics = SinkTopics(files, self.path)
                if self.directories and not topics.replicated:
                    raise ConfigError(f"option path={self.path!r}: no directory of a replicated store")
                self._check_topic(topics, columns)
                self._check_lock(files)
            # This raises StorageError if the directory is not writable.
            Stager(self.path, files=self.files).close()
        except (StorageError, UnknownTopicOrPartitionError, InvalidTopicError) as error:
            option = "path" if isinstance(error, StorageError) else "topic"
            raise ConfigError(f"option {option}: {error} (path={self.path!r})") from None

    def _check_topic(self, topics: SinkTopics, columns: Sequence[str]) -> None:
        if self.topic is None:
            if not topics.names:
                raise ConfigError(
                    f"option path={self.path!r}: there is no topic; store.create_topic makes one"
                )
            return
        check_not_internal(self.topic, "nothing is written to it through Spark")
        info = topics.find(self.topic)
        if "compact" in info.settings.cleanup_policy and "key" not in columns:
            raise ConfigError(
                f"column key is missing: topic {self.topic!r} has cleanup.policy="
                f"{info.settings.cleanup_policy}, every record must have a key"
            )

    def _check_lock(self, files: Files) -> None:
        """Raise ConfigError if a Kafka broker has locked the store, because a broker does not append staged
        rows.
        """
        path = os.path.join(self.path, file_names.LOCK)
        if not files.exists(path):
            return
        with files.open(path) as handle:
            pid = locks.holder(handle.fd) or -1
        if pid > 0:
            raise ConfigError(
                f"option path={self.path!r}: process {pid} has the directory locked as a Kafka broker has, "
                "and will adopt nothing: stop it, or write through it"
            )

    # --- tasks -------------------------------------------------------------------------------

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Staged | None:
        """Stage all rows of a task, and return them when they are durable. Return None if there are no rows.
        If this raises an error, no row is staged.
        """
        rows = _gathered(batches)
        first = next(rows, None)
        if first is None:
            return None
        divider = Divider(SinkTopics(self.files or Files(), self.path).find, self.topic)
        with Stager(self.path, files=self.files) as stager:
            _append(stager, divider, first)
            for each in rows:
                _append(stager, divider, each)
            return stager.finish()

    # --- the driver, after --------------------------------------------------------------------

    def seal_micro_batch(self, query: str, batch: int, staged: Sequence[Staged]) -> Adoption | None:
        """Call `seal` for the rows of a micro-batch, and return its result. Return None if there are no rows,
        or if the rows were dropped because rows of a later micro-batch are in the log.

        The offsets of Spark's plan are stored with the rows. If later rows of the same micro-batch have other
        offsets, they come from another plan.
        """
        if not staged:
            return None
        files = self.files or Files()
        try:
            with os_errors():
                id_ = id_of(files, Folder(files, self._root(staged)).adopted, query, batch)
        except IdempotencyConflictError as error:
            self._drop(error, staged)
            return None
        return self.seal(id_, staged, source_offsets(self.checkpoint, batch))

    def seal(self, id_: str, staged: Sequence[Staged], source: str = "") -> Adoption | None:
        """Submit the staged rows under an id, wait until they are in the log, and return their `Adoption`.
        Return None if there are no rows.

        Raises the errors of `segstore.storage.staging.seal`. If the log has other rows with the same id, and
        failOnDataLoss is false, the new rows are dropped, and a warning is logged.
        """
        if not staged:
            return None
        try:
            done = self._sealed(id_, self._root(staged), staged, source)
        except IdempotencyConflictError as error:
            self._drop(error, staged)
            return self._sealed(id_, self._root(staged), (), "")
        came = sum(each.records for each in staged)
        if done.records != came:
            log.warning("%s; %d came again and are dropped: they are not the same each time", done, came)
        return done

    def _sealed(self, id_: str, root: str, staged: Sequence[Staged], source: str) -> Adoption:
        opener, seconds = self._open if self.directories else None, self.seal_timeout_ms / 1000
        try:
            return seal(root, id_, staged, seconds, source=source, files=self.files, opener=opener)
        except KafkaTimeoutError as error:
            raise KafkaTimeoutError(f"{error} (option sealTimeout={self.seal_timeout_ms}ms)") from None

    def _root(self, staged: Sequence[Staged]) -> str:
        return staged[0].path if self.directories else self.path

    def _drop(self, error: IdempotencyConflictError, staged: Sequence[Staged]) -> None:
        """If failOnDataLoss is true, raise `error`, with advice. If it is false, drop the staged rows, and
        log a warning.
        """
        if self.fail_on_data_loss:
            raise IdempotencyConflictError(f"{error}. {REMEDY}") from None
        log.warning("%s; failOnDataLoss=false: the rows that came now are dropped", error)
        self.abort(staged)

    def _open(self) -> Store:
        return open_replicated(self.directories, witness=self.witness)

    def abort(self, staged: Sequence[Staged]) -> None:
        """Remove the staged rows that `seal` has not submitted. Submitted rows are in the log, or will be."""
        abort(staged, None if self.directories else self.path, files=self.files)


def _takes_files(path: str) -> bool:
    """Return whether rows can be staged in a directory."""
    try:
        Stager(path).close()
    except SegstoreError:
        return False
    return True


class SinkTopics:
    """The topics of a store, which are read from its files without an open of the store. The constructor
    reads all topics. If a topic was missing at that time, `find` looks for it again.
    """

    def __init__(self, files: Files, path: str) -> None:
        """Raises StorageError."""
        with os_errors():
            self._topics = StagersTopics(files, path)

    @property
    def replicated(self) -> bool:
        return self._topics.replicated

    @property
    def names(self) -> list[str]:
        with os_errors():
            return self._topics.names

    def find(self, topic: str) -> TopicInfo:
        """Return a topic. Raises UnknownTopicOrPartitionError, which advises to create it, or the error that
        the read of the topic's settings has raised.
        """
        try:
            with os_errors():
                return self._topics.find(topic)
        except UnknownTopicOrPartitionError as error:
            raise UnknownTopicOrPartitionError(f"{error}; store.create_topic makes one") from None


def _append(stager: Stager, divider: Divider, rows: pa.RecordBatch) -> None:
    now = wall_clock()
    for topic, partition, group in divider.groups(rows):
        stager.append_batch(topic, partition, **columns_of(group, now))


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches` in batches of about GATHERED_BYTES bytes. No yielded batch is empty."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.nbytes
        if size >= GATHERED_BYTES:
            yield from _joined(held)
            held, size = [], 0
    if held:
        yield from _joined(held)


def _joined(held: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(held) == 1:
        return held
    joined: list[pa.RecordBatch] = pa.Table.from_batches(held).combine_chunks().to_batches()
    return joined


# --- sink options ------------------------------------------------------------------------------

# The sink has the options and columns of Spark's own Kafka sink. Here the driver checks both as far as
# possible without the store.

COLUMNS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (HEADERS,),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "topic": ("string",),
}
"""The columns that a DataFrame may have to be written, each with its allowed types."""

PASSED_OVER = ("offset", "timestampType")
"""The columns of the source that the sink ignores, because the log assigns their values. So rows that the
source has read can be written unchanged.
"""

KNOWN = ("path", "topic", "sealTimeout", "jobId", "checkpointLocation", "failOnDataLoss", "witness")
TIMEOUT_MS = 120_000
"""The default of the option sealTimeout. It equals the default of Kafka's delivery.timeout.ms."""


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write. `paths` has several directories if the store is replicated. `topic` is None if
    the column `topic` names the topic. `job_id`, `witness` and `checkpoint` are None if their options are not
    given. If `fail_on_data_loss`, an error is raised if the log has other rows with the same id; else the new
    rows are dropped.
    """

    paths: tuple[str, ...]
    topic: str | None
    seal_timeout_ms: int
    job_id: str | None
    witness: str | None
    checkpoint: str | None
    fail_on_data_loss: bool


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse options. Raises ConfigError, which names the option, its value and the allowed values."""
    options = by_lower_names(given)
    _check_known(options)
    job = options.get("jobid")
    if job is not None and (streaming or not 0 < len(job) <= 500 or not job.isprintable()):
        what = "a stream's micro-batches have ids of their own" if streaming else "1 to 500 characters"
        raise ConfigError(f"option jobId={job!r:.80}: {what}")
    topic = options.get("topic")
    if topic is not None and not topic:
        raise ConfigError("option topic='': must be the name of a topic")
    timeout = duration_ms("sealTimeout", options.get("sealtimeout"), TIMEOUT_MS)
    paths = store_paths(options)
    witness = store_witness(options, paths)
    fail = flag("failOnDataLoss", options.get("failondataloss"), True)
    return SinkOptions(paths, topic, timeout, job, witness, options.get("checkpointlocation"), fail)


def _check_known(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in KNOWN}
    for name in sorted(options.keys() - known.keys()):
        if needs_broker(name):
            raise ConfigError(
                f"option {name}: there is no broker here, so it means nothing; leave it out "
                "(the store's directory is given by option path, compression by the topic's settings)"
            )
        near = difflib.get_close_matches(name, known, 1)
        meant = f"did you mean {known[near[0]]}? " if near else ""
        raise ConfigError(f"option {name} is unknown: {meant}allowed are {', '.join(KNOWN)}")


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise ConfigError, which says why, if a DataFrame with this schema can't be written."""
    names = schema.names
    for field in schema.fields:
        if field.name in PASSED_OVER:
            continue
        allowed = COLUMNS.get(field.name)
        if allowed is None:
            raise ConfigError(
                f"column {field.name!r} can't be written: allowed are {', '.join(COLUMNS)}; drop it"
            )
        kind = field.dataType.simpleString()
        # In the text of a string type, the collation may follow after a space.
        if kind.split(" ")[0] not in allowed:
            raise ConfigError(f"column {field.name} is {kind}: must be {' or '.join(allowed)}; cast it")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"column {name} is there {names.count(name)} times: it may be there once")
    if "value" not in names:
        raise ConfigError(f"column value is missing: it must be there, binary or string; there are {names}")
    if topic is None and "topic" not in names:
        raise ConfigError('nothing says which topic to write to: give option topic="name", or a column topic')
