"""`ConsumerConfig`: the settings of a consumer, with kafka-python's names and defaults. Threads: any; a
ConsumerConfig is immutable.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from segstore.client.settings import StoreClientSettings
from segstore.config import client
from segstore.config.client import duration, function, off, parts, switch, text
from segstore.config.options import MAX_INT, choice, made, whole
from segstore.config.settings import options
from segstore.coordinator.group.assignors import ASSIGNORS, by_name
from segstore.coordinator.group.consumers.assignors import SERVER_ASSIGNORS

_INSTANCE = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")

_OF_PROTOCOL = {
    "partition_assignment_strategy": "classic",
    "session_timeout_ms": "classic",
    "heartbeat_interval_ms": "classic",
    "group_remote_assignor": "consumer",
}
"""{setting: the group_protocol that allows it}, as in Kafka's Java consumer. With the other protocol the
default value is allowed, too, because programs pass all settings of DEFAULT_CONFIG; any other value is
refused.
"""

Deserialize = Callable[[str, "list[tuple[str, bytes | None]]", "bytes | None"], Any]
"""A function that makes an object of the application from (topic, headers, bytes)."""


def _deserializer(value: Any) -> Any:
    deserialize = getattr(value, "deserialize", value)
    if value is not None and not callable(deserialize):
        raise ValueError
    return value


def _group(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value):
        raise ValueError
    return value


def _instance(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and _INSTANCE.fullmatch(value)):
        raise ValueError
    return None if value is None else str(value)


def _remote_assignor(value: Any) -> str | None:
    if value is not None and value not in SERVER_ASSIGNORS:
        raise ValueError
    return None if value is None else str(value)


def _rack(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _strategies(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (str, Sequence)):
        raise ValueError
    given = (value,) if isinstance(value, str) else tuple(value)
    if len({by_name(each).name for each in given}) != len(given) or not given:
        raise ValueError
    return given


def deserializer(doc: str) -> Any:
    allowed = "a callable of bytes, or an object with deserialize(topic, headers, data)"
    return made(None, allowed, doc, _deserializer)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(StoreClientSettings):
    """Settings of one consumer."""

    IGNORED: ClassVar[Mapping[str, str]] = {
        **client.IGNORED,
        "enable_incremental_fetch_sessions": "there are no fetch requests that could be kept short",
        "retry_backoff_ms": "there are no requests to be sent again, a read fails or does not",
    }

    client_id: str = text("segstore", "the name of this client in metrics and messages")
    group_id: str | None = made(
        None,
        "a str that is not empty, or None",
        "the group whose members share partitions and offsets",
        _group,
    )
    group_instance_id: str | None = made(
        None,
        "1 to 249 of [a-zA-Z0-9._-], not . or .., or None",
        "makes a static member: it may be away for session_timeout_ms, and come back to its partitions",
        _instance,
    )
    group_protocol: str = choice(
        "classic",
        ("classic", "consumer"),
        "how the group's members share partitions: classic, by a leader among them; consumer, by the "
        "coordinator (KIP-848)",
    )
    group_remote_assignor: str | None = made(
        None,
        f"one of {', '.join(SERVER_ASSIGNORS)}, or None",
        'the assignor that this member asks for, with group_protocol "consumer"; None: any',
        _remote_assignor,
    )
    partition_assignment_strategy: tuple[Any, ...] = made(
        ("range", "roundrobin"),
        f"a list of {', '.join(ASSIGNORS)}, or of assignors",
        "how a group's leader hands out partitions: of the strategies that all members support, the one that "
        "most of them prefer",
        _strategies,
    )
    key_deserializer: object = deserializer("makes keys out of bytes")
    value_deserializer: object = deserializer("makes values out of bytes")
    interceptors: tuple[Any, ...] = parts(
        "called in order with what poll gives and what was committed", "on_consume", "on_commit"
    )
    fetch_max_wait_ms: float = duration(500, "how long fetch_min_bytes are waited for once there are some")
    fetch_min_bytes: int = whole(1, 0, MAX_INT, "bytes", "a fetch waits until so many are there")
    fetch_max_bytes: int = whole(
        52_428_800, 0, MAX_INT, "bytes", "most that one fetch of all partitions gives, as stored"
    )
    max_partition_fetch_bytes: int = whole(
        1 << 20, 0, MAX_INT, "bytes", "most that a fetch reads of one partition; one batch at least"
    )
    max_poll_records: int = whole(500, 1, MAX_INT, "records", "most that one poll gives")
    client_rack: str = made(
        "",
        "a str",
        "the directory of a replicated store to read from, by its id, if its replica is in sync",
        _rack,
    )
    auto_offset_reset: str = choice(
        "latest",
        ("earliest", "latest", "none"),
        "where to begin without a position, or when its records are gone; none: an error",
        {"smallest": "earliest", "largest": "latest"},
    )
    isolation_level: str = choice(
        "read_uncommitted",
        ("read_uncommitted", "read_committed"),
        "read_committed leaves out records of transactions that are open or aborted",
    )
    check_crcs: bool = switch(True, "whether the CRC of each batch is checked")
    consumer_timeout_ms: float = duration(
        math.inf, "how long an iteration waits for a record before it ends", forever=True
    )
    exclude_internal_topics: bool = switch(True, "whether a pattern leaves internal topics out")
    metadata_max_age_ms: float = duration(300_000, "how old the list of topics may become")
    allow_auto_create_topics: bool = off("allow_auto_create_topics", "topics are made by Store.create_topic")
    enable_auto_commit: bool = switch(True, "whether a group's member commits what it has read by itself")
    auto_commit_interval_ms: float = duration(5_000, "how often it does so")
    default_offset_commit_callback: object = function("called with (offsets, result) by commit_async")
    max_poll_interval_ms: int = whole(
        300_000, 1, MAX_INT, "ms", "a group's member that does not poll for so long has failed"
    )
    session_timeout_ms: int = whole(
        45_000, 1, MAX_INT, "ms", "a group's member without a heartbeat for so long has failed"
    )
    heartbeat_interval_ms: int = whole(3_000, 1, MAX_INT, "ms", "how often a group's member sends heartbeats")
    metrics_enabled: bool = switch(True, "whether anything is measured")
    metrics_num_samples: int = whole(2, 1, 1_000, "windows", "how many windows measures are taken over")
    metrics_sample_window_ms: int = whole(30_000, 1, MAX_INT, "ms", "how long a window is")
    metric_group_prefix: str = text("consumer", "what names of groups of metrics begin with")

    def conflict(self) -> str | None:
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            return (
                f"heartbeat_interval_ms={self.heartbeat_interval_ms}: must be below "
                f"session_timeout_ms={self.session_timeout_ms}"
            )
        if self.group_instance_id is not None and self.group_id is None:
            return f"group_instance_id={self.group_instance_id!r}: requires group_id"
        for name, protocol in _OF_PROTOCOL.items():
            value = getattr(self, name)
            if protocol != self.group_protocol and value != options(ConsumerConfig)[name].default:
                return f"{name}={value!r}: requires group_protocol={protocol!r}, not {self.group_protocol!r}"
        return None


def deserialize_with(deserializer: Any) -> Deserialize | None:
    """Return a function of (topic, headers, data) that calls an application's deserializer: a callable of
    bytes, or an object with deserialize(topic, headers, data) or the older deserialize(topic, data). Return
    None if there is no deserializer.
    """
    if deserializer is None:
        return None
    method = getattr(deserializer, "deserialize", None)
    if method is None:
        return lambda topic, headers, data: deserializer(data)
    return method if _takes(method, 3) else lambda topic, headers, data: method(topic, data)


def _takes(method: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # The method is C code without a signature.
        return True
    return True
