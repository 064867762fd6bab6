"""Runs a consumer's interceptors (Kafka: ConsumerInterceptors). Nothing on disk. Threads: the consumer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segstore.client.consumer.coordination import Offsets
from segstore.client.consumer.records import ConsumerRecord
from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidTypeError
from segstore.logger import Logger
from segstore.mutex import calls_out

Polled = dict[TopicPartition, list[ConsumerRecord]]

log = Logger(__name__)


class Interceptors:
    """What one raises is logged, and the others go on, as in Kafka: they never stop a consumer."""

    def __init__(self, interceptors: Sequence[Any]) -> None:
        self._all = interceptors

    def __bool__(self) -> bool:
        return bool(self._all)

    @calls_out
    def on_consume(self, records: Polled) -> Polled:
        """What the last one makes of what the others made of `records`."""
        for interceptor in self._all:
            method = getattr(interceptor, "on_consume", None)
            if method is not None:
                try:
                    records = _polled(method(records))
                except Exception:
                    log.exception("interceptor %r failed in on_consume", interceptor)
        return records

    def on_commit(self, offsets: Offsets) -> None:
        """Tell all what was committed."""
        self._call("on_commit", offsets)

    def close(self) -> None:
        """Tell all that nothing more comes."""
        self._call("close")

    @calls_out
    def _call(self, name: str, *arguments: Any) -> None:
        for interceptor in self._all:
            method = getattr(interceptor, name, None)
            if method is not None:
                try:
                    method(*arguments)
                except Exception:
                    log.exception("interceptor %r failed in %s", interceptor, name)


def _polled(made: Any) -> Polled:
    if not isinstance(made, dict):
        raise InvalidTypeError(f"on_consume must return a dict of records, not {type(made).__name__}")
    return made
