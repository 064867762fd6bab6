"""Promise: an acknowledgement and its commit make a bounded number of calls of Python functions, whatever the
machine is: these are most of their time. Comprehensions count as calls before Python 3.12.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from python_calls import calls_of
from share_consumers import EARLIEST, set_group

import segstore
from segstore import AcknowledgeType, ConsumerRecord, ShareConsumer

TIMES, WARM = 20, 5
SHOWN = 25
RECORDS = 400
AN_ACKNOWLEDGE = 4
ONCE = 5  # calls that only the first acknowledgement of a kind makes
KINDS = {AcknowledgeType.ACCEPT: 119, AcknowledgeType.RELEASE: 125, AcknowledgeType.REJECT: 122}
"""The most calls of an acknowledgement and its commit; before they were counted, accepting took 247."""


def told(calls: Counter[str], most: int) -> str:
    heaviest = "\n".join(f"{n:5} {name}" for name, n in calls.most_common(SHOWN))
    return f"{calls.total()} calls, {most} are allowed. The heaviest:\n{heaviest}"


def polled(store: segstore.Store) -> tuple[ShareConsumer, list[ConsumerRecord]]:
    """A consumer that has all records of one poll, of which it has acknowledged the first ones."""
    store.create_topic("jobs")
    store.partition("jobs").append_batch([b"x"] * RECORDS)
    set_group(store, **EARLIEST)
    queue = ShareConsumer(store, "jobs", group_id="g", share_acknowledgement_mode="explicit")
    records = queue.poll_flat()
    assert len(records) == RECORDS
    for record in records[:WARM]:
        queue.acknowledge(record)
        queue.commit_sync()
    return queue, records[WARM:]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_single_acknowledgement(kind: AcknowledgeType, store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        queue, records = polled(store)

        def work() -> None:
            for record in records[:TIMES]:
                queue.acknowledge(record, kind)
                queue.commit_sync()

        calls, most = calls_of(work), KINDS[kind] * TIMES + ONCE
        for record in records[TIMES:]:
            queue.acknowledge(record)
        queue.close()
    assert calls.total() <= most, told(calls, most)


def test_many_acknowledgements_with_one_commit(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        queue, records = polled(store)

        def work() -> None:
            for record in records:
                queue.acknowledge(record)
            queue.commit_sync()

        calls, most = calls_of(work), AN_ACKNOWLEDGE * len(records) + KINDS[AcknowledgeType.ACCEPT]
        queue.close()
    assert calls.total() <= most, told(calls, most)
