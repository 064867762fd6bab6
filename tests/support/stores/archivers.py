"""Archivers whose ticks a test makes one by one."""

from __future__ import annotations

from contextlib import contextmanager

from segstore.archiving.archiver import Archiver
from segstore.archiving.counts import ArchiverCounts
from segstore.archiving.moment import Moments
from segstore.archiving.settings import checked
from segstore.storage.store.store import open as open_store

DEFAULTS = {
    "topics": None,
    "interval_ms": 1000,
    "retention_ms": -1,
    "retention_bytes": -1,
    "replaced_retention_ms": -1,
    "grace_ms": 600_000,
    "uploads": 2,
}


@contextmanager
def archiver_of(store, objects, *, clock=None, again=lambda error: False, most_at_once=1 << 30, **settings):
    """Give an archiver of a directory, which has taken the archive over."""
    given = {} if clock is None else {"clock": clock}
    with open_store(store, "r", **given) as opened:
        asked = checked(**{**DEFAULTS, **settings})
        made = Archiver(objects, Moments(opened, asked), asked, ArchiverCounts(), again, most_at_once)
        try:
            yield made
        finally:
            made.close()


def settled(archiver):
    """Tick until the uploads beside the ticks have landed, and are in the archive."""
    archiver.tick()
    while archiver.flights.names:
        while archiver.flights.is_waiting:
            """They end without help."""
        archiver.tick()
