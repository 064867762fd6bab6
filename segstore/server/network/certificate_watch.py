"""`CertificateWatch`: warns if a listener's certificate expires soon. Owns nothing on disk.

Threads: the loop's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

from segstore.logger import Logger
from segstore.server.node import NodeLoop

log = Logger("segstore")

DAY = 86_400.0
SOON = 30 * DAY


class CertificateWatch:
    """Checks a listener's certificate once a day; `end()` returns the time at which the certificate expires,
    in seconds since the epoch, or None.
    """

    def __init__(
        self,
        loop: NodeLoop,
        listener: str,
        end: Callable[[], float | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._loop, self._listener, self._end, self._clock = loop, listener, end, clock

    def begin(self) -> None:
        """Check the certificate now, and once a day from now on."""
        self.look()
        self._loop.later(DAY, self.begin)

    def look(self) -> None:
        """Log a warning if the certificate expires within `SOON` seconds. Log an error if the certificate has
        expired.
        """
        end = self._end()
        left = SOON if end is None else end - self._clock()
        if end is None or left >= SOON:
            return
        when = datetime.fromtimestamp(end, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        if left <= 0:
            log.error(
                "the certificate of the listener %s has ended at %s: clients refuse it", self._listener, when
            )
        else:
            log.warning(
                "the certificate of the listener %s ends in %.1f days, at %s",
                self._listener,
                left / DAY,
                when,
            )
