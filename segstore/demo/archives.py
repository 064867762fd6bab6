"""The archive part of the demo: a store is archived while records are appended, and then the store is lost.
The store is restored from the archive as it was one minute earlier, without the wrong records that a faulty
program has appended in that minute. The store of the flights is archived too, for the Spark part.

On disk: a store and two archives, in directories. Threads: one, and the threads of the archive.
"""

from __future__ import annotations

import os
import shutil
import time

import segstore
from segstore.cli.output import size_text, time_text
from segstore.demo.replicas import quiet
from segstore.demo.screen import Screen
from segstore.errors import StorageError

TOPIC = "payments"
GOOD, WRONG = 5_000, 200
MINUTE_MS = 60_000
_LONGEST_MS = 60_000.0
STORE, ARCHIVE, RESTORED, FLIGHTS = "store", "archive", "restored", "flights-archive"


def archives(screen: Screen, base: str, flights: str) -> str:
    """Run this part in directories below `base`, which is created; then archive the store of the flights, and
    return the URI of that archive. Raises StorageError if the restored store lacks a payment or has a wrong
    record.
    """
    os.makedirs(base, exist_ok=True)
    store, uri, restored, large = (os.path.join(base, n) for n in (STORE, ARCHIVE, RESTORED, FLIGHTS))
    now = time.time_ns() // 1_000_000
    with screen.step("An archive", "a store is lost, and comes back as it was a minute before"), quiet():
        _write(screen, store, uri, now)
        shutil.rmtree(store)
        screen.say("the disk of the store is lost")
        made = segstore.restore(uri, restored, now - MINUTE_MS)
        screen.say(f"segstore restore --at {time_text(now - MINUTE_MS)}: {size_text(made.bytes)} of log")
        prove(screen, restored)
        _archive(screen, flights, large)
    return large


def _write(screen: Screen, path: str, uri: str, now: int) -> None:
    """While the store is archived, append payments whose timestamps are at least a minute old, and wrong
    records with timestamps of the last half minute.

    The topic is created before the archive begins. A topic that the archive's first commit lacks did not
    exist a minute ago, and would not be restored.
    """
    with segstore.open(path) as store:
        store.create_topic(TOPIC)
        log = store.partition(TOPIC)
        with segstore.archive(store, uri, interval_ms=50) as archive:
            for n in range(GOOD):
                log.append(b"payment %d" % n, timestamp=now - 10 * MINUTE_MS + n * 9 * MINUTE_MS // GOOD)
            for n in range(WRONG):
                log.append(b"wrong %d" % n, timestamp=now - MINUTE_MS // 2 + n)
            if not archive.wait_archived(_LONGEST_MS):
                raise StorageError(f"the archive does not come to an end: {archive.error}")
            screen.say(f"{GOOD:,} payments, then {WRONG} wrong ones of the last half minute;")
            screen.say(f"the archive has them: {archive.total_lag().records:,} records behind")


def prove(screen: Screen, path: str) -> None:
    """Check that the restored store has each payment once and no other record. Raises StorageError."""
    with segstore.open(path, "r") as store:
        found = [record.value for record in store.partition(TOPIC)]
    if found != [b"payment %d" % n for n in range(GOOD)]:
        raise StorageError(f"{path} has {len(found):,} records, which are not the {GOOD:,} payments")
    if findings := segstore.check(path):
        raise StorageError(f"{path} is not sound: {findings[0]}")
    screen.good(f"all {GOOD:,} payments are there, none of the wrong ones, and the store is sound")


def _archive(screen: Screen, path: str, uri: str) -> None:
    began = time.monotonic()
    with segstore.archive(path, uri) as archive:
        if not archive.wait_archived(_LONGEST_MS):
            raise StorageError(f"the archive does not come to an end: {archive.error}")
    screen.say(f"the flights are archived, too, in {time.monotonic() - began:.1f} s")
