"""Our replica follows a real Kafka broker: what it stores, and what becomes of it when either is killed, is
paused, or has records that the other lacks.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from kafka_tools import why_not

import segstore

pytest.importorskip("confluent_kafka", reason="Kafka's broker needs a client with every codec")
pytest.importorskip("kafka.protocol.consumer.fetch", reason="kafka-python encodes what brokers send")
pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),  # the first call may download
    pytest.mark.kind("replicas of a real broker"),
]
if TYPE_CHECKING:
    from kafka_pair import Pair


def test_transactions_of_kafkas_clients_come_with_their_markers(pair: Pair) -> None:
    from kafka_pair import values

    pair.create(leader=pair.kafka, min_insync_replicas="2")
    expected = []
    for n, commit in enumerate((True, False, True, False)):
        pair.transact(written := values(f"transaction {n}"), commit)
        expected += written if commit else []
    pair.judge()
    assert pair.stored("read_committed") == expected
    assert len(pair.stored()) == 2 * len(expected)


def test_gaps_of_compaction_stay(pair: Pair) -> None:
    from kafka_pair import values

    pair.ask("hold", fetches=False)
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
    pair.create(leader=pair.kafka, segment_bytes="1048576", in_sync=False, **settings)
    pair.await_alone(pair.kafka)
    # The first record stays: a follower notes its leader epoch where the first batch begins.
    keys = [b"once", *(b"%d" % (n % 50) for n in range(1499))]
    pair.produce(values("compacted", 1500, 2000), keys=keys)
    pair.await_compacted()
    pair.ask("hold")
    batches = pair.judge()
    assert sum(int(str(batch["count"])) for batch in batches) < 1200


def test_our_follower_is_killed_while_it_fetches(pair: Pair) -> None:
    from kafka_pair import values
    from waiting import until

    pair.create(leader=pair.kafka)
    pair.produce(values("large", 4000, 1000), acks="1")
    until(lambda: pair.ask("state", pair.topic)[2] > 0)
    pair.kill_ours()
    pair.produce(values("alone"), acks="1")
    pair.join()
    pair.judge()


def test_our_follower_is_paused_until_it_is_out_of_sync(pair: Pair) -> None:
    """For longer than its session and replica.lag.time.max.ms: the leader commits without it."""
    from kafka_pair import values

    pair.create(leader=pair.kafka)
    pair.produce(values("before"))
    pair.await_in_sync()
    pair.member.signal(signal.SIGSTOP)
    pair.await_alone(pair.kafka)
    pair.produce(values("meanwhile", 200))
    pair.member.signal(signal.SIGCONT)
    pair.judge()
    assert pair.stored() == [*values("before"), *values("meanwhile", 200)]


def test_kafka_is_paused_and_we_lead_meanwhile(pair: Pair) -> None:
    from kafka_pair import values

    pair.create(leader=pair.kafka)
    pair.produce(values("before"))
    pair.cluster.broker.signal(signal.SIGSTOP)
    pair.await_leader(pair.node)
    pair.ask("append", pair.topic, values("meanwhile"))
    pair.cluster.broker.signal(signal.SIGCONT)
    assert int(str(pair.judge()[-1]["partitionLeaderEpoch"])) >= 1


def test_kafka_cuts_what_we_lack_after_an_unclean_election(pair: Pair) -> None:
    """Broker 3 is alone in sync when it dies, and its last records were committed."""
    from kafka_pair import values

    pair.create(leader=pair.kafka, unclean_leader_election_enable="true")
    pair.produce(values("common"))
    pair.ask("hold", fetches=False)
    pair.produce(lost := values("only Kafka's", 30), acks="1")
    pair.await_alone(pair.kafka)
    pair.kill_kafka()
    pair.await_leader(pair.node)
    pair.ask("hold")
    pair.ask("append", pair.topic, values("other", 20))
    pair.cluster.await_broker()
    pair.judge()
    assert not {*lost} & {*pair.stored()}


def test_what_kafka_has_deleted_is_not_asked_for(pair: Pair) -> None:
    """Our log ends below the leader's log start offset, and begins anew there (R6, R12)."""
    from kafka_pair import values

    pair.create(leader=pair.kafka)
    pair.produce(values("deleted", 20))
    pair.kill_ours()  # a live one would be waited for
    pair.produce(values("deleted too", 20))
    pair.produce(kept := values("kept", 20))
    pair.delete_records(40)
    pair.join()
    pair.await_follows()
    pair.await_in_sync()
    pair.member.stop()
    assert pair.stored() == list(kept)
    assert [str(finding) for finding in segstore.check(pair.root)] == []
