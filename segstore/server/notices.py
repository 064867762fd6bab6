"""`Notices`: log lines about misbehaving clients, such as malformed requests and failed authentications.

For each kind of message, peer and user there is at most one line a minute, so that no client can flood the
log.

Owns nothing on disk. Threads: any.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from segstore.logger import Logger
from segstore.mutex import Mutex

log = Logger("segstore")

QUIET = 60.0
"""The minimum number of seconds between two log lines with the same kind, peer and user."""
MOST = 100
"""The maximum number of (kind, peer, user) keys that have log lines of their own. All further peers together
have one log line a minute for each kind.
"""
MOST_USERS = 10
"""The maximum number of users of one peer that have log lines of their own. All further users of the peer
together have one log line a minute for each kind.
"""
_OTHERS = ""
LONGEST = 100


class Notices:
    """Logs messages about misbehaving clients, at a limited rate. A node has one such object
    (`Node.part`).
    """

    def __init__(self, _node: object, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Mutex()
        self._known: dict[_Key, _Silence] = {}

    def log(
        self,
        kind: str,
        peer: str,
        message: str,
        *args: object,
        user: str = "",
        level: int = logging.WARNING,
    ) -> None:
        """Log a message, unless a message with the same kind, peer and user was logged in the last `QUIET`
        seconds. The next such message that is logged says how many were omitted.
        """
        with self._lock:
            silence = self._silence(_Key(kind, peer, user[:LONGEST]))
            now = self._clock()
            if now < silence.until:
                silence.left_out += 1
                return
            more = f" ({silence.left_out} more since the last such line)" if silence.left_out else ""
            silence.until, silence.left_out = now + QUIET, 0
        log.log(level, f"{message}%s", *args, more)

    def _silence(self, key: _Key) -> _Silence:
        found = self._known.get(key)
        if found is not None:
            return found
        if len(self._known) >= MOST or self._users(key) >= MOST_USERS:
            now = self._clock()
            self._known = {key: each for key, each in self._known.items() if now < each.until}
        if self._users(key) >= MOST_USERS:
            key = key._replace(user=_OTHERS)
        if key not in self._known and len(self._known) >= MOST:
            key = _Key(key.kind, _OTHERS, _OTHERS)
        return self._known.setdefault(key, _Silence())

    def _users(self, key: _Key) -> int:
        """Return how many users of the key's kind and peer have lines of their own; 0 if the key has no
        user.
        """
        return sum(each.user != "" and each[:2] == key[:2] for each in self._known) if key.user else 0


class _Key(NamedTuple):
    kind: str
    peer: str
    user: str


class _Silence:
    """`left_out` counts the omitted messages of a key. Messages are omitted until the time `until`, in
    seconds of the clock.
    """

    __slots__ = ("left_out", "until")

    def __init__(self) -> None:
        self.until, self.left_out = 0.0, 0


def shown(name: str) -> str:
    """Return a text that a client has sent, in quotes, for a log line. Cut the text off after `LONGEST`
    characters.
    """
    return repr(name if len(name) <= LONGEST else f"{name[:LONGEST]}...")
