"""Fills logs with records and transactions that are drawn: what readers of logs are compared on."""

from __future__ import annotations

import random

from producers import send
from stores import START_MS

import segstore
from segstore.storage.log.transaction_markers import end_transaction


def fill(log: segstore.PartitionLog, rng: random.Random, least: int = 12) -> None:
    """Append from `least` to twice as many batches, with nulls, empty values and headers, and stamps in no
    order.
    """
    for _ in range(rng.randrange(least, 2 * least)):
        n = rng.randrange(1, 60)
        log.append_batch(
            [rng.choice((None, b"", rng.randbytes(rng.randrange(1, 50)), b"a" * 30)) for _ in range(n)],
            keys=[rng.choice((None, b"k")) for _ in range(n)],
            headers=[[("h", b"x")] * rng.choice((0, 0, 2)) for _ in range(n)],
            timestamps=[START_MS - rng.randrange(10**6) for _ in range(n)],
            batch_bytes=rng.choice((200, 2000)),
        )


def transactions(
    store: segstore.Store, rng: random.Random, appends: int = 60, ended_of: float = 0.7, **config: object
) -> None:
    """Make the topic "txn", with transactions of three producers that are committed and aborted by turns, in
    no order, and one that stays open.
    """
    store.create_topic("txn", config=config or None)
    log, ended = store.partition("txn"), [0, 0, 0]
    for i in range(appends):
        pid = rng.randrange(3)
        send(log, pid, ended[pid], n=3, txn=True)
        ended[pid] += 3
        if rng.random() < ended_of:
            end_transaction([log], pid, 0, 0, commit=i % 2 == 0)
    send(log, 9, 0, n=2, txn=True)
