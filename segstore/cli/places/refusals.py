"""`Refusals`: reports errors after which librdkafka retries, if they persist.

librdkafka reports such an error only in its debug log; the application gets an error only when the records
time out, minutes later. Nothing on disk. Threads: one, which polls librdkafka, because librdkafka passes on
its log in polls.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

LASTS = 2.0
"""Seconds without an acknowledgement after which an error is reported; a leader change takes less."""
_REFUSED = re.compile(
    r": (\S+) \[(\d+)\]: MessageSet .* encountered error: (?:Broker: )?(.*) \(actions (.*)\)$"
)
_NO_ID = re.compile(r"Failed to acquire idempotence PID from broker \S+: (?:Broker: )?(.*): retrying$")
_DEMOTED = {"Not coordinator": "; a store that was demoted says so: the promoted one takes records"}
"""Explanations that are added to the messages of errors."""


class Refusals(logging.Handler):
    """The errors after which one producer retries; the producer must be created with `debug` and `logger`.
    `report` is called with a line for each error that persists, but not with the same line again until a
    record is acknowledged.
    """

    debug = "msg"

    def __init__(self, report: Callable[[str], object]) -> None:
        super().__init__(logging.DEBUG)
        self.logger = logging.Logger("segstore.librdkafka.producer", logging.DEBUG)
        self.logger.addHandler(self)
        self._report = report
        self._since: float | None = None
        self._reported: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a line of librdkafka's log."""
        line = _line(record.getMessage())
        if not line:
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= LASTS and line != self._reported:
            self._reported = line
            self._report(line)

    def acknowledged(self) -> None:
        """Note that a record was acknowledged, so that earlier errors are over."""
        self._since = self._reported = None


def _line(message: str) -> str:
    """Return the text of an error after which librdkafka retries, from a line of its log; return "" for any
    other line.
    """
    if refused := _REFUSED.search(message):
        return f"{refused[1]}-{refused[2]}: {refused[3]}" if "Retry" in refused[4] else ""
    if no_id := _NO_ID.search(message):
        return f"no producer id: {no_id[1]}{_DEMOTED.get(no_id[1], '')}"
    return ""
