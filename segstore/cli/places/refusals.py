"""`Refusals`: reports errors that last, although librdkafka retries after them.

librdkafka writes such an error only into its debug log. The application gets an error only when the records
time out, minutes later. Nothing is on disk. Threads: one, which polls librdkafka: librdkafka passes lines of
its log to Python during a poll.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

LASTS = 2.0
"""If no record is acknowledged for this number of seconds after an error, the error is reported. (A change of
leaders takes less time.)
"""
_REFUSED = re.compile(
    r": (\S+) \[(\d+)\]: MessageSet .* encountered error: (?:Broker: )?(.*) \(actions (.*)\)$"
)
_NO_ID = re.compile(r"Failed to acquire idempotence PID from broker \S+: (?:Broker: )?(.*): retrying$")
_DEMOTED = {"Not coordinator": "; a store that was demoted says so: the promoted one takes records"}
"""For each error: an explanation, which is added to its message."""


class Refusals(logging.Handler):
    """Handles the errors after which one producer retries. The producer must be created with the settings
    `debug` and `logger` of this object. If an error lasts, `report` is called with a line about the error.
    `report` is called with the same line again only after a record was acknowledged.
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
        """Forget earlier errors, because a record was acknowledged."""
        self._since = self._reported = None


def _line(message: str) -> str:
    """If `message`, a line of librdkafka's log, is about an error after which librdkafka retries, return a
    text about this error. If not, return "".
    """
    if refused := _REFUSED.search(message):
        return f"{refused[1]}-{refused[2]}: {refused[3]}" if "Retry" in refused[4] else ""
    if no_id := _NO_ID.search(message):
        return f"no producer id: {no_id[1]}{_DEMOTED.get(no_id[1], '')}"
    return ""
