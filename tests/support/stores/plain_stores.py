"""Plain stores that become replicated ones and back, and what users see of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from replicated_stores import found

import segstore
from segstore.coordinator.group.admin import Groups

CONFIG = {"segment.bytes": 2_000, "compression.type": "zstd", "index.interval.bytes": 200}
FEW = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}


def filled(path: Path) -> dict[str, Any]:
    """Make a plain store with records, a group's offsets and an aborted transaction; return what it holds."""
    with segstore.open(path, config=FEW) as store:
        store.create_topic("t", partitions=2, config=CONFIG)
        store.create_topic("compacted", config={"cleanup.policy": "compact"})
        for number in range(60):
            store.partition("t", number % 2).append(b"%d" % number * 20, key=b"k%d" % number)
        store.partition("compacted", 0).append(b"kept", key=b"k")
        with segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest") as consumer:
            while consumer.poll(5_000, 20) == {}:
                pass
            consumer.commit()
        with segstore.Producer(store, transactional_id="mine") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"never", partition=0)
            producer.abort_transaction()
        return held(store)


def held(store: Any) -> dict[str, Any]:
    """What users see of a store: topics, settings, committed offsets, records."""
    topics = {n: (i.topic_id, i.partition_ids, dict(i.config)) for n, i in store.topics().items()}
    offsets = {each.partition: each.committed for each in Groups(store).describe("g").partitions}
    ends = {(n, p): store.partition(n, p).end_offset for n in ("t", "compacted") for p in topics[n][1]}
    records = {key: found(store.partition(*key)) for key in ends}
    return {"topics": topics, "offsets": offsets, "ends": ends, "records": records}
