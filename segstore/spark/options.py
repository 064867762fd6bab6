"""`SourceOptions`: the options of the source, which have the names, values and defaults of Spark's own Kafka
source.

Here the driver checks the options as far as possible without the store. Threads: any; values are immutable,
the functions have no state.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from segstore.archiving.archive_uri import redacted
from segstore.config import arguments
from segstore.errors import ConfigError, InvalidArgumentError, StorageError
from segstore.files import Files
from segstore.spark.archive_place import (
    FILESYSTEM,
    ArchivePlace,
    absolute,
    archive_place,
    is_archive_uri,
)
from segstore.spark.offsets import (
    OffsetSpec,
    assigned,
    by_json,
    by_lower_names,
    by_timestamp,
    by_word,
    duration_ms,
    flag,
    one_of,
    positive,
    topics,
)

if TYPE_CHECKING:
    from segstore.storage.store.store import Store

SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_STREAM = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
KNOWN = (
    *(
        "path",
        "witness",
        "archive",
        FILESYSTEM,
        *SUBSCRIPTIONS,
        *_STARTING,
        "startingOffsetsByTimestampStrategy",
        *_ENDING,
        *_STREAM,
    ),
    *("minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "kafka.isolation.level"),
    "filterPushdown",
)
_NEEDS_BROKER = ("kafkaconsumer.", "fetchoffset.", "groupidprefix", "kafka.")
ISOLATION = ("read_uncommitted", "read_committed")
DELAY_MS = 15 * 60_000


class TopicSelection(NamedTuple):
    """The partitions that a query reads: all partitions of `topics`, all partitions of the topics whose names
    match `pattern`, or `partitions`. `option` is the name of the option that selects them.
    """

    option: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read. A field that may be None is None if its option was not given. `paths` has
    several directories if the store is replicated, and is empty if only an archive is read.
    """

    paths: tuple[str, ...]
    archive: ArchivePlace | None
    witness: str | None
    subscription: TopicSelection
    starting: OffsetSpec | None
    ending: OffsetSpec | None
    or_latest: bool
    fail_on_data_loss: bool
    include_headers: bool
    filter_pushdown: bool | None
    isolation_level: str
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int

    @property
    def path(self) -> str:
        """Return the value of the option path, for messages."""
        return ":".join(self.paths) or str(self.archive)

    def begin(self, streaming: bool) -> OffsetSpec:
        """Return the begin of the read. If no option sets it, it is the latest offset for a streaming query,
        and the earliest offset for a batch query. Raises ConfigError if a batch query begins at "latest".
        """
        spec = self.starting or by_word("startingOffsets", "latest" if streaming else "earliest")
        if not streaming:
            spec.refuse("latest", "a batch query would have nothing to read: take earliest or offsets")
        return spec

    def end(self) -> OffsetSpec:
        """Return the end of a batch query. Raises ConfigError if it is "earliest"."""
        spec = self.ending or by_word("endingOffsets", "latest")
        spec.refuse("earliest", "a batch query would have nothing to read: take latest or offsets")
        return spec

    def check_stream(self) -> None:
        """Raise ConfigError if an option is given that only a batch query can have."""
        if self.ending is not None:
            raise ConfigError(
                f"option {self.ending.option}: a stream has no end; leave it out, or use spark.read"
            )


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse options. Raises ConfigError, which names the option, its value and the allowed values."""
    options = by_lower_names(given)
    _check_known(options)
    starting, ending = _spec(options, _STARTING), _spec(options, _ENDING)
    strategy = _get(options, "startingOffsetsByTimestampStrategy") or "error"
    least, most = (positive(n, _get(options, n)) for n in ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"))
    if least is not None and most is not None and least > most:
        raise ConfigError(f"option minOffsetsPerTrigger={least}: must be at most maxOffsetsPerTrigger={most}")
    archive, alone = archive_place(options)
    paths = () if alone else store_paths(options)
    if archive is not None and len(paths) > 1:
        raise ConfigError(
            f"option archive={str(archive)!r}: must stand beside one directory, not beside those of a "
            "replicated store"
        )
    return SourceOptions(
        paths,
        archive,
        store_witness(options, paths),
        _subscription(options),
        starting,
        ending,
        one_of("startingOffsetsByTimestampStrategy", strategy, ("error", "latest")) == "latest",
        flag("failOnDataLoss", _get(options, "failOnDataLoss"), True),
        flag("includeHeaders", _get(options, "includeHeaders"), False),
        flag("filterPushdown", _get(options, "filterPushdown"), None),
        one_of("kafka.isolation.level", _get(options, "kafka.isolation.level") or ISOLATION[0], ISOLATION),
        positive("minPartitions", _get(options, "minPartitions")),
        positive("maxRecordsPerPartition", _get(options, "maxRecordsPerPartition")),
        most,
        least,
        duration_ms("maxTriggerDelay", _get(options, "maxTriggerDelay"), DELAY_MS),
    )


def _get(options: Mapping[str, str], name: str) -> str | None:
    return options.get(name.lower())


def _check_known(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in KNOWN}
    for name in sorted(options.keys() - known.keys()):
        if name == "paths":
            raise ConfigError(
                "option path: load() takes the directory of one store, not several; those of a replicated "
                "store are one path, separated by colons"
            )
        if needs_broker(name):
            raise ConfigError(
                f"option {name}: there is no broker here, so it means nothing; leave it out "
                "(the store's directory is given by option path)"
            )
        near = difflib.get_close_matches(name, known, 1)
        meant = f"did you mean {known[near[0]]}? " if near else ""
        raise ConfigError(f"option {name} is unknown: {meant}allowed are {', '.join(KNOWN)}")


def needs_broker(name: str) -> bool:
    """Return whether Spark's Kafka source has an option of this name (in lower case) that needs a broker."""
    return name.startswith(_NEEDS_BROKER)


def store_paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories in the option path. For a replicated store these are several absolute paths,
    separated by colons as in SEGSTORE_PATH.

    A colon is part of a name if no slash follows it, or if there is a file or directory with the whole value
    as its path. Raises the errors of `store_path`, and ConfigError if a directory is named twice, or is
    inside another directory.
    """
    given = _given_path(options)
    if is_archive_uri(given):
        raise ConfigError(
            f"option path={redacted(given)!r}: must be a directory of this machine: an archive is only read"
        )
    path = store_path(options)
    several = [given] if Files().exists(path) else re.split(":(?=/)", given)
    if len(several) == 1:
        return (path,)
    if not all(each.startswith("/") for each in several):
        raise ConfigError(
            f"option path={given!r}: several directories must be absolute, as /disk1/log:/disk2/log, since "
            "tasks have working directories of their own"
        )
    from segstore.replication.metadata.voters import check_paths

    try:
        return tuple(check_paths(Files(), several, options.get("witness")))[: len(several)]
    except InvalidArgumentError as error:
        raise ConfigError(f"option path={given!r}: {error}") from None


def settled_path(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options; if the option path names one directory, it is made absolute. An error in the option
    is ignored here: `store_path` will raise it.
    """
    with suppress(ConfigError, StorageError):
        options = by_lower_names(given)
        if "archive" in options:
            options["archive"] = absolute("archive", options["archive"])
        if is_archive_uri(options.get("path", "")):
            return options
        paths = store_paths(options)
        return {**options, "path": paths[0]} if len(paths) == 1 else options
    return dict(given.items())


def options_of(store: Store) -> dict[str, str]:
    """Return the options path and witness with which the sink and the source use a store. Raises ConfigError
    if a slash follows a colon in a directory's path, because the path would look like two directories.
    """
    from segstore.replication.store import ReplicatedStore

    if not isinstance(store, ReplicatedStore):
        return {"path": store.path}
    directories = tuple(store.directories)
    found = {"path": ":".join(directories)}
    if store.witness is not None and len(directories) > 1:
        found["witness"] = store.witness
    if store_paths(found) != directories:
        raise ConfigError(f"option path={found['path']!r}: a directory's name must not end with a colon")
    return found


def store_witness(options: Mapping[str, str], paths: Sequence[str]) -> str | None:
    """Return the value of the option witness; None if it is not given. Raises ConfigError if it is given, but
    `paths` has only one directory.
    """
    witness = options.get("witness")
    if witness is not None and len(paths) < 2:
        raise ConfigError(
            f"option witness={witness!r}: only a replicated store has one, all of whose directories are "
            "given by option path, separated by colons"
        )
    return None if witness is None else arguments.path("option witness", witness)


def store_path(options: Mapping[str, str]) -> str:
    """Return the value of the option path as an absolute path. Names in `options` are in lower case. Raises
    ConfigError, and StorageError if the current directory was deleted.
    """
    path = _given_path(options)
    if not path:
        raise ConfigError('option path is missing: .option("path", "/the/store"), or .load("/the/store")')
    try:
        return arguments.path("option path", path)
    except InvalidArgumentError as error:
        raise ConfigError(str(error)) from None


def _given_path(options: Mapping[str, str]) -> str:
    return re.sub(r"^file:(//)?(?=/)", "", options.get("path", ""))


def _subscription(options: Mapping[str, str]) -> TopicSelection:
    given = [name for name in SUBSCRIPTIONS if _get(options, name) is not None]
    if len(given) != 1:
        what = f"{' and '.join(given)} exclude each other" if given else "nothing says which topics to read"
        raise ConfigError(f'{what}: give one option of {", ".join(SUBSCRIPTIONS)}, as subscribe="topic"')
    name = given[0]
    text = _get(options, name) or ""
    if name == "subscribe":
        return TopicSelection(name, topics=topics(name, text))
    if name == "assign":
        return TopicSelection(name, partitions=assigned(name, text))
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"option {name}={text!r}: no regular expression: {error}") from None
    return TopicSelection(name, pattern=text)


def _spec(options: Mapping[str, str], names: tuple[str, str, str]) -> OffsetSpec | None:
    """Return the value of the first option in `names` that is given; None if none is given."""
    timestamp, by_times, offsets = ((name, _get(options, name)) for name in names)
    # All given options are parsed, so that an error in any of them is reported.
    found = [
        by_timestamp(timestamp[0], timestamp[1]) if timestamp[1] is not None else None,
        by_json(by_times[0], by_times[1], times=True) if by_times[1] is not None else None,
        by_word(offsets[0], offsets[1]) if offsets[1] is not None else None,
    ]
    return next((spec for spec in found if spec is not None), None)
