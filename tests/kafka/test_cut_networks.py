"""The network between a real Kafka broker and ours is cut: links that hold everything up, refuse connections,
or lose answers; a leader that is cut off from all, or from the controller alone; and links that are cut again
and again. What was acknowledged stays, and both logs are equal once the links are mended.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from fault_proxy import Proxy
from kafka_tools import why_not

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


def _refused(link: Proxy) -> None:
    link.refuse()
    link.cut(hard=True)


CUTS: dict[str, Callable[[Proxy], object]] = {
    "held up": lambda link: link.stall(),
    "refused": _refused,
    "without answers": lambda link: link.mute(),
    "without requests": lambda link: link.stall(requests=True, answers=False),
}


@contextmanager
def cut(how: str, *links: Proxy) -> Iterator[None]:
    for link in links:
        CUTS[how](link)
    try:
        yield
    finally:
        for link in links:
            link.cut(hard=True)  # what was on its way is lost, as on a route that is gone
            link.go_on()


@pytest.mark.parametrize("how", CUTS)
def test_r19_kafka_can_t_reach_our_leader(apart: Pair, how: str) -> None:
    """It leaves the ISR, what is appended meanwhile is committed without it, and it comes back."""
    from kafka_pair import values

    apart.create(leader=apart.node)
    apart.ask("append", apart.topic, values("before"))
    apart.await_in_sync()
    with cut(how, apart.network.to_us):
        apart.ask("append", apart.topic, values("meanwhile", 20))
        apart.await_alone(apart.node)
        apart.ask("append", apart.topic, values("alone", 20))
    apart.judge()
    assert len(apart.stored()) == 90


@pytest.mark.parametrize("how", CUTS)
def test_we_can_t_reach_kafkas_leader(apart: Pair, how: str) -> None:
    from kafka_pair import values

    apart.create(leader=apart.kafka)
    apart.produce(values("before"))
    apart.await_in_sync()
    with cut(how, apart.network.to_kafka):
        apart.produce(values("meanwhile", 20))
        apart.await_alone(apart.kafka)
        apart.produce(values("alone", 20))
    apart.judge()
    assert len(apart.stored()) == 90


@pytest.mark.parametrize("alone", [True, False], ids=["from all", "from the controller alone"])
@pytest.mark.parametrize("how", ["held up", "refused"])
def test_r2_our_leader_is_cut_off(apart: Pair, how: str, alone: bool) -> None:
    """Kafka is elected, and what the old leader has taken with acks=1 meanwhile is cut."""
    from kafka_pair import values

    apart.create(leader=apart.node)
    apart.ask("append", apart.topic, kept := values("before"))
    apart.await_in_sync()
    network = apart.network
    with cut(how, network.to_controller, *((network.to_us, network.to_kafka) if alone else ())):
        apart.await_leader(apart.kafka)
        apart.ask("append", apart.topic, lost := values("of a zombie", 30), acks=1)
        apart.produce(later := values("under Kafka", 20))
    apart.await_follows()
    apart.judge()
    stored = apart.stored()
    assert not {*lost} & {*stored}
    assert stored == [*kept, *later]


def test_links_that_are_cut_again_and_again(apart: Pair, rng: random.Random) -> None:
    """With min.insync.replicas=2 nothing that is acknowledged is lost, whoever leads behind that."""
    from kafka_pair import values

    apart.create(leader=apart.node, min_insync_replicas="2")
    over, links = threading.Event(), (apart.network.to_us, apart.network.to_controller)
    thread = threading.Thread(target=_shake, args=(links, rng, over), daemon=True)
    thread.start()
    acknowledged: list[Any] = []
    for turn in range(12):
        apart.ask("append", apart.topic, some := values(f"turn {turn}", 40, 500))
        acknowledged += some
    over.set()
    thread.join(60)
    assert not thread.is_alive()
    apart.await_in_sync()
    apart.elect(apart.kafka)
    assert apart.consumed(len(acknowledged)) == acknowledged
    apart.judge()


def _shake(links: tuple[Proxy, ...], rng: random.Random, over: threading.Event) -> None:
    """Cut connections within a message, or between two, until it is over."""
    while not over.wait(0.1 + rng.random() / 4):
        link = rng.choice(links)
        fault, number = rng.randrange(3), rng.randint(1, 20_000)
        if fault == 0:
            link.cut(hard=bool(number % 2))
        elif fault == 1:
            link.tear(1)
        else:
            link.cut_after(number)
    for link in links:
        link.go_on()
