"""Event-sourced orders: what happened is a log, and what an order is now is computed from it.

    python examples/orders.py orders-log          # places, pays and ships orders until Ctrl-C
    python examples/orders.py orders-log 100      # handles 100 orders and ends
    segstore consume orders --store orders-log    # what happened

Events are appended to the topic `orders`, each synced before it counts (`flush.messages=1`). Now and then the
orders that have changed are written as snapshots to a compacted topic, which keeps the latest one of each
order, so that a start replays the events since then only.

Ctrl-C, which may come at any moment, also between the append of an event and its effect on `state`, writes a
last snapshot, which tells which events it has. After `kill -9` or a power cut every event that `append` has
acknowledged is there, and the next start replays those that no snapshot has.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json

import segstore

EVERY = 25
"""Events between two snapshots."""
MARK = b"next event"
"""Key of the record that says from where events are to be replayed."""


def opened(store: segstore.Store, topic: str, config: dict[str, object]) -> segstore.PartitionLog:
    """Return the log of a topic of one partition, made at the first start."""
    store.ensure_topic(topic, config=config)
    return store.partition(topic)


class Orders:
    """All orders as they are now, by their ids; `state` changes by events only."""

    def __init__(self, store: segstore.Store) -> None:
        self.events = opened(store, "orders", {"flush.messages": 1})
        self.snapshots = opened(
            store, "order-snapshots", {"cleanup.policy": "compact", "segment.bytes": 1 << 20}
        )
        self.state: dict[str, dict] = {}
        self.changed: set[str] = set()
        self.next = 0  # the first event that `state` may lack
        for record in self.snapshots:
            if record.key == MARK:
                self.next = int(record.value)
            else:
                self.state[record.key.decode()] = json.loads(record.value)
        self.replayed = 0
        for record in self.events.scan(self.next):
            self.replayed += 1
            self._apply(record.key.decode(), json.loads(record.value), record.offset)

    def happened(self, order: str, event: dict) -> None:
        """Note an event. It counts once it is in the log: if `append` raises, nothing has changed."""
        offset = self.events.append(json.dumps(event).encode(), key=order.encode())
        self._apply(order, event, offset)
        if (offset + 1) % EVERY == 0:
            self.snapshot()

    def _apply(self, order: str, event: dict, offset: int) -> None:
        now = self.state.get(order, {"cents": 0, "offset": -1})
        if offset > now["offset"]:  # else its snapshot has this event already
            self.changed.add(order)
            cents = now["cents"] + event.get("cents", 0)
            self.state[order] = {"status": event["type"], "cents": cents, "offset": offset}
        self.next = offset + 1

    def snapshot(self) -> None:
        """Write what has changed, and last of all from where to replay: if a crash comes in between, events
        are replayed that some snapshots have, which `_apply` sees by their offsets.
        """
        keys = [order.encode() for order in self.changed]
        values = [json.dumps(self.state[order]).encode() for order in self.changed]
        self.snapshots.append_batch([*values, b"%d" % self.next], keys=[*keys, MARK])
        self.changed.clear()


def main(path: str, count: int | None = None) -> None:
    with segstore.open(path) as store:
        orders = Orders(store)
        print(f"{len(orders.state)} orders, {orders.replayed} events replayed", flush=True)
        first = len(orders.state)
        numbers = itertools.count(first) if count is None else range(first, first + count)
        with contextlib.suppress(KeyboardInterrupt):
            for number in numbers:
                order = f"order-{number}"
                orders.happened(order, {"type": "placed", "cents": 1000 + number % 7})
                orders.happened(order, {"type": "paid"})
                if number % 3:
                    orders.happened(order, {"type": "shipped"})
        orders.snapshot()
        print(f"{len(orders.state)} orders, {orders.events.end_offset} events", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage="orders.py STORE [COUNT]")
    parser.add_argument("path")
    parser.add_argument("count", nargs="?", type=int)
    main(**vars(parser.parse_args()))
