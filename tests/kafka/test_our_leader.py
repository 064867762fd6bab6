"""Our replica leads, and a real Kafka broker follows it: what that stores, and what becomes of it when either
is killed, is paused, or has records that the other lacks.
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


def test_our_transactions_are_read_by_kafkas_clients(pair: Pair) -> None:
    from kafka_pair import values

    pair.create(leader=pair.node, min_insync_replicas="2")
    for n, commit in enumerate((True, False, True, False)):
        pair.ask("transact", pair.topic, 7000 + n % 2, 10 * (n // 2), 10, commit)
    pair.ask("append", pair.topic, values("plain", 10))
    pair.elect(pair.kafka)
    found = pair.consumed(30)
    assert [value.split(b".")[0] for value in found[:20]] == [b"7000/%d" % n for n in range(20)]
    assert found[20:] == list(values("plain", 10))
    pair.judge()


def test_kafka_is_killed_and_follows_again(pair: Pair) -> None:
    from kafka_pair import values

    pair.create(leader=pair.node)
    pair.ask("append", pair.topic, values("before", 2000, 500))
    pair.kill_kafka()
    pair.ask("append", pair.topic, values("meanwhile", 2000, 500), "zstd")
    pair.cluster.await_broker()
    pair.judge()


def test_kafka_is_paused_until_it_is_out_of_sync(pair: Pair) -> None:
    """For longer than its session and replica.lag.time.max.ms: we commit without it."""
    from kafka_pair import values

    pair.create(leader=pair.node)
    pair.ask("append", pair.topic, values("before"))
    pair.await_in_sync()
    pair.cluster.broker.signal(signal.SIGSTOP)
    pair.await_alone(pair.node)
    pair.ask("append", pair.topic, values("meanwhile", 200))
    pair.cluster.broker.signal(signal.SIGCONT)
    pair.judge()
    assert pair.stored() == [*values("before"), *values("meanwhile", 200)]


def test_our_leader_is_killed_and_follows(pair: Pair) -> None:
    from kafka_pair import values

    pair.create(leader=pair.node, min_insync_replicas="2")
    pair.ask("append", pair.topic, acked := values("acknowledged by both", 200))
    pair.kill_ours()
    pair.await_leader(pair.kafka)
    pair.produce(values("meanwhile"), acks="1")
    pair.join()
    pair.judge()
    assert pair.stored()[: len(acked)] == list(acked)


def test_our_leader_is_paused_and_wakes_as_a_zombie(pair: Pair) -> None:
    from kafka_pair import values

    pair.create(leader=pair.node)
    pair.ask("append", pair.topic, values("before"))
    pair.member.signal(signal.SIGSTOP)
    pair.await_leader(pair.kafka)
    pair.produce(values("meanwhile"))
    pair.member.signal(signal.SIGCONT)
    pair.await_follows()
    assert int(str(pair.judge()[-1]["partitionLeaderEpoch"])) >= 1


def test_our_leader_without_a_controller_has_its_records_cut(pair: Pair) -> None:
    """A zombie takes records with acks=1 under its old leader epoch, while Kafka leads in the next one."""
    from kafka_pair import values

    pair.create(leader=pair.node)
    pair.ask("append", pair.topic, values("before"))
    pair.ask("hold", reachable=False, serves=False)
    pair.await_leader(pair.kafka)
    pair.ask("append", pair.topic, lost := values("zombie", 30), acks=1)
    pair.produce(values("under Kafka", 20))
    pair.ask("hold")
    pair.await_follows()
    pair.judge()
    assert not {*lost} & {*pair.stored()}


def test_we_cut_what_kafka_lacks_after_an_unclean_election(pair: Pair) -> None:
    """We are alone in sync when we die, and our last records were committed."""
    from kafka_pair import values

    pair.create(leader=pair.node, unclean_leader_election_enable="true")
    pair.ask("append", pair.topic, values("common"))
    pair.ask("hold", serves=False)
    pair.ask("append", pair.topic, lost := values("only ours", 30), acks=1)
    pair.await_alone(pair.node)
    pair.kill_ours()
    pair.await_leader(pair.kafka)
    pair.produce(values("other", 20))
    pair.join()
    pair.judge()
    assert not {*lost} & {*pair.stored()}


def test_what_we_have_deleted_kafka_does_not_ask_for(pair: Pair) -> None:
    """Kafka's log ends below our log start offset, and begins anew there (R6, R12)."""
    from kafka_pair import values

    pair.create(leader=pair.node)
    pair.ask("append", pair.topic, values("deleted", 20))
    pair.kill_kafka()
    pair.ask("append", pair.topic, values("deleted too", 20))
    pair.ask("delete_records", pair.topic, 40)
    pair.ask("append", pair.topic, kept := values("kept", 20))
    pair.cluster.await_broker()
    pair.await_in_sync()
    pair.elect(pair.kafka)
    assert pair.consumed(20) == list(kept)
    pair.member.stop()
    assert [str(finding) for finding in segstore.check(pair.root)] == []
