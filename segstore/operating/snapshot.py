"""`MetricsSnapshots`: snapshots of a store's metrics. A separate thread gathers the metrics when a scrape
asks for them. On disk: the store reads files. Threads: any may call `ask`, `text` and `age`. If a disk hangs,
only the gathering thread waits, and `text` returns the last snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.operating.exposition import Encoding
from segstore.storage.store.stats import Family
from segstore.threads import Background

log = Logger("segstore")

FRESH = 1.0
"""How long a snapshot is reused, in seconds."""


class _AskedSnapshot(NamedTuple):
    encoding: Encoding
    done: Callable[[], object]


class _Snapshot(NamedTuple):
    """A snapshot of metrics. `at` is the time at which gathering it began, in monotonic seconds. `texts` has
    the texts that were requested, by media type.
    """

    at: float
    families: Sequence[Family]
    texts: dict[str, bytes]


class MetricsSnapshots:
    """The last snapshot of the metrics that `gather` returns. `gather` may wait for a disk. `failures` counts
    the snapshots that could not be made because of an error.
    """

    def __init__(self, gather: Callable[[], Sequence[Family]]) -> None:
        self._gather = gather
        self._held = _Snapshot(float("-inf"), (), {})
        self._begun = time.monotonic()
        self._asked: SimpleQueue[_AskedSnapshot | None] = SimpleQueue()
        self._thread = Background(self._run, "segstore-snapshot")
        self._last_failure = ""
        self.failures = 0

    def start(self) -> None:
        """Start the thread. Raises IllegalStateError."""
        self._thread.start()

    def close(self) -> None:
        """Make the thread stop. Do not wait until it has stopped, because it may be waiting for a disk."""
        self._asked.put(None)

    def is_fresh(self, encoding: Encoding) -> bool:
        """Return whether the last snapshot is younger than FRESH and has a text in this encoding."""
        held = self._held
        return encoding.content_type in held.texts and time.monotonic() - held.at < FRESH

    def text(self, encoding: Encoding) -> bytes:
        """Return the last snapshot's text in this encoding, or b"" before the first snapshot."""
        return self._held.texts.get(encoding.content_type, b"")

    @property
    def age(self) -> float:
        """Return the seconds since the last snapshot. If there is no snapshot yet, return the seconds since
        this object was made.
        """
        return time.monotonic() - max(self._held.at, self._begun)

    def ask(self, encoding: Encoding, done: Callable[[], object]) -> None:
        """Request a fresh snapshot. `done` is called in the gathering thread, when the snapshot is made or an
        error has prevented it.
        """
        self._asked.put(_AskedSnapshot(encoding, done))

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while (first := self._asked.get()) is not None:
            asked = [first]
            with suppress(Empty):
                while (more := self._asked.get_nowait()) is not None:
                    asked.append(more)
                return
            self._answer(asked)

    def _answer(self, asked: Sequence[_AskedSnapshot]) -> None:
        try:
            if time.monotonic() - self._held.at >= FRESH:
                at = time.monotonic()
                self._held = self._with_texts(_Snapshot(at, self._gather(), {}), asked)
            else:
                self._held = self._with_texts(self._held, asked)
            self._last_failure = ""
        except Exception as error:
            self._failed(error)
        finally:
            for each in asked:
                each.done()

    def _with_texts(self, snapshot: _Snapshot, asked: Sequence[_AskedSnapshot]) -> _Snapshot:
        texts = dict(snapshot.texts)
        for encoding in dict.fromkeys(each.encoding for each in asked):
            if encoding.content_type not in texts:
                texts[encoding.content_type] = encoding.text(snapshot.families)
        return snapshot._replace(texts=texts)

    def _failed(self, error: Exception) -> None:
        """Count an error, and log it if it differs from the last error."""
        self.failures += 1
        text = f"{type(error).__name__}: {error}"
        if text != self._last_failure:
            self._last_failure = text
            known = isinstance(error, SegstoreError | OSError)
            log.warning("metrics could not be gathered: %s", text) if known else log.exception(
                "a defect, met by the thread that gathers metrics"
            )
