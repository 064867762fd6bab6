"""`Refusals`: the errors after which librdkafka sends records again, told once they last.

librdkafka reports such an error only in its debug log; the application hears of it when the records time out,
minutes later. Nothing is on disk. Threads: one, that polls librdkafka: so the log is taken in polls.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

LASTS = 2.0
"""Seconds without an acknowledgement after which an error is told: a change of leaders takes less."""
_REFUSED = re.compile(
    r": (\S+) \[(\d+)\]: MessageSet .* encountered error: (?:Broker: )?(.*) \(actions (.*)\)$"
)


class Refusals(logging.Handler):
    """The errors of one producer, which is made with `debug` and `logger`. `tell` gets a line for each error
    that lasts, once until a record is acknowledged.
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
        """Take a line of the log."""
        found = _REFUSED.search(record.getMessage())
        if found is None or "Retry" not in found[4]:
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        line = f"{found[1]}-{found[2]}: {found[3]}"
        if now - self._since >= LASTS and line != self._told:
            self._told = line
            self._tell(line)

    def acknowledged(self) -> None:
        """Note that a record was acknowledged: the cluster takes records."""
        self._since = self._told = None
