"""The application's hooks: before a record is serialized, and when its outcome is known. Nothing on disk.

Threads: `on_send` in the thread that sends, `on_acknowledgement` in the sender's, or where `send` failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segstore.client.producer.record import ProducerRecord, RecordMetadata
from segstore.logger import Logger
from segstore.mutex import calls_out

log = Logger("segstore")


class Interceptors:
    """What one raises is logged, and the record goes on as it was before (Kafka: ProducerInterceptors)."""

    def __init__(self, hooks: Sequence[Any]) -> None:
        self._hooks = hooks

    def __bool__(self) -> bool:
        return bool(self._hooks)

    @calls_out
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record as the last of them gives it."""
        for hook in self._hooks:
            if not hasattr(hook, "on_send"):
                continue
            try:
                made = hook.on_send(record)
            except Exception:
                log.exception("an interceptor's on_send failed")
                continue
            if isinstance(made, ProducerRecord):
                record = made
            else:
                log.error("an interceptor's on_send gave %s, not a ProducerRecord", type(made).__name__)
        return record

    def acknowledged(self, metadata: RecordMetadata) -> None:
        """The record is in the log."""
        self._call("on_acknowledgement", metadata, None)

    def failed(self, error: BaseException) -> None:
        """The record is not, and will not be."""
        self._call("on_acknowledgement", None, error)

    def close(self) -> None:
        """The producer is closed."""
        self._call("close")

    @calls_out
    def _call(self, name: str, *args: Any) -> None:
        for hook in self._hooks:
            if hasattr(hook, name):
                try:
                    getattr(hook, name)(*args)
                except Exception:
                    log.exception("an interceptor's %s failed", name)
