"""Batches as producers send them, and pinned stretches, of a partition with replicas."""

from __future__ import annotations

import os
from typing import Any

import pytest
from replicated_stores import Directories, found
from sent import batch, of_producer
from waiting import until

from segstore.errors import NotEnoughReplicasError
from segstore.replication.metadata.image import PartitionKey

pytestmark = pytest.mark.kind("replicated stores")


def test_all_replicas_have_what_was_sent(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    assert log.append_may_wait(-1)
    until(lambda: not log.append_may_wait(1))
    sent = [batch(codec) for codec in range(5)]
    offsets = [log.append_as_leader(each, acks=-1).base_offset for each in sent]
    offsets += [log.append_as_leader(of_producer(n), acks=-1).base_offset for n in (0, 1, 0)]
    assert offsets == [0, 3, 6, 9, 12, 15, 16, 15]
    assert (log.high_watermark, sorted(found(log))) == (17, list(range(17)))
    assert log.append_as_leader(of_producer(2), acks=1).base_offset == 17
    until(lambda: log.high_watermark == 18)


def test_a_stretch_ends_at_the_high_watermark(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", assignments={0: [0, 1]}, config={"min.insync.replicas": 2})
    log = store.partition("t", 0)
    log.append_as_leader(batch(), acks=-1)
    three.lose(1)
    _await_alone(store)
    with pytest.raises(NotEnoughReplicasError):
        log.append_as_leader(batch(), acks=-1)
    assert log.append_as_leader(batch(), acks=1).base_offset == 3
    with log.stretch(0, 1 << 20) as stretch:
        assert (stretch.next_offset, stretch.high_watermark, log.log_end_offset) == (3, 3, 6)
        assert len(os.pread(stretch.fileno(), len(stretch), stretch.position)) == len(stretch) > 0
    beyond = log.stretch(5, 100)
    assert (len(beyond), beyond.next_offset) == (0, 5)


def _await_alone(store: Any) -> None:
    until(lambda: store.describe_partition("t", 0).isr == (0,))
    leader = store.replicated.manager.leader(PartitionKey("t", 0))
    until(lambda: leader.core.leader.isr.isr == {0})
