"""Makes the store that repair tests damage, and reads what it has. On disk: a store."""

from __future__ import annotations

from pathlib import Path

from compaction import Unsynced
from damage import SIZES, N
from stores import START_MS, logs, values, write_topic

import segstore
from segstore.records import TRANSACTIONAL_FLAG, Columns, Template
from segstore.storage.log.append import append_batches
from segstore.storage.log.transaction_markers import end_transaction


def built(path: Path) -> Path:
    """Make a cleanly closed store with several segments of small batches, and transactions, of which one in
    three is aborted.
    """
    with write_topic(path, [], {**SIZES, "segment.bytes": 1500}, close=False, files=Unsynced()) as store:
        log = store.partition("t")
        for i in range(N // 3):
            log.append_batch([b"%03d" % i] * 2)
            template = Template(TRANSACTIONAL_FLAG, producer_id=7, producer_epoch=0, base_sequence=i)
            append_batches(log, Columns([b"txn %d" % i], None, [START_MS + i]), template=template)
            end_transaction([log], 7, 0, 0, i % 3 > 0)
    assert segstore.check(path) == []
    assert len(logs(path)) > 3
    return path


def seen(path: Path) -> tuple[list[bytes | None], list[bytes | None]]:
    with segstore.open(path, mode="r") as store:
        log = store.partition("t")
        return values(log), values(log, isolation_level="read_committed")
