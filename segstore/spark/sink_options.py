"""The sink's options and columns: those of Spark's own Kafka sink. Nothing on disk.

All is found wrong here, on the driver, that can be without a look at the store.
Threads: any; values and functions without state.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segstore.errors import ConfigError
from segstore.spark.columns import HEADERS
from segstore.spark.options import needs_broker, store_path
from segstore.spark.parsing import by_lower_names, duration_ms

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (HEADERS,),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "topic": ("string",),
}
"""What may be written, and of which types."""

PASSED_OVER = ("offset", "timestampType")
"""The source gives them, the log makes its own: so that what was read can be written as it is."""

KNOWN = ("path", "topic", "sealTimeout", "jobId", "checkpointLocation")
TIMEOUT_MS = 120_000
"""As long as Kafka's producer tries to deliver (delivery.timeout.ms)."""


@dataclass(frozen=True)
class SinkOptions:
    """What a write was asked for. `topic`: None where a column says it; `job_id`: None where it has none."""

    path: str
    topic: str | None
    seal_timeout_ms: int
    job_id: str | None


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """ConfigError names the option, its value and what is allowed."""
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
    return SinkOptions(store_path(options), topic, timeout, job)


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
    """ConfigError names the column, its type and what is allowed."""
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
        if kind.split(" ")[0] not in allowed:  # a string may name its collation
            raise ConfigError(f"column {field.name} is {kind}: must be {' or '.join(allowed)}; cast it")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"column {name} is there {names.count(name)} times: it may be there once")
    if "value" not in names:
        raise ConfigError(f"column value is missing: it must be there, binary or string; there are {names}")
    if topic is None and "topic" not in names:
        raise ConfigError('nothing says which topic to write to: give option topic="name", or a column topic')
