"""`Refusals`: the errors after which librdkafka retries, reported if they last.

librdkafka reports such an error only in its debug log; the application gets an error when the records time
out, minutes later. Nothing on disk. Threads: one, that polls librdkafka: the log is read in polls.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

LASTS = 2.0
"""Seconds without an acknowledgement after which an error is reported: a change of leaders takes less."""
_REFUSED = re.compile(
    r": (\S+) \[(\d+)\]: MessageSet .* encountered error: (?:Broker: )?(.*) \(actions (.*)\)$"
)
_NO_ID = re.compile(r"Failed to acquire idempotence PID from broker \S+: (?:Broker: )?(.*): retrying$")
_DEMOTED = {"Not coordinator": "; a store that was demoted says so: the promoted one takes records"}
"""Explanations of errors of a reachable cluster."""


class Refusals(logging.Handler):
    """The retried errors of one producer, which is made with `debug` and `logger`. `tell` gets a line for
    each error that lasts; a repeated line is suppressed until a record is acknowledged.
    """

    debug = "msg"

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__(logging.DEBUG)
        self.logger = logging.Logger("segstore.librdkafka.producer", logging.DEBUG)
        self.logger.addHandler(self)
        self._tell = tell
        self._since: float | None = None
        self._told: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a line of librdkafka's log."""
        line = _line(record.getMessage())
        if not line:
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= LASTS and line != self._told:
            self._told = line
            self._tell(line)

    def acknowledged(self) -> None:
        """Note an acknowledged record: the cluster accepts records."""
        self._since = self._told = None


def _line(message: str) -> str:
    """Return the text of an error after which librdkafka retries, from its line in the log; "" for other
    lines.
    """
    if refused := _REFUSED.search(message):
        return f"{refused[1]}-{refused[2]}: {refused[3]}" if "Retry" in refused[4] else ""
    if no_id := _NO_ID.search(message):
        return f"no producer id: {no_id[1]}{_DEMOTED.get(no_id[1], '')}"
    return ""
