"""A real broker of Kafka 4.1 answers as the table of transactional ids says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka_broker import Broker
from kafka_tools import classpath, why_not
from transaction_states import (
    STATES,
    Transactions,
    ask_all,
    await_coordinators,
    await_state,
    bring,
    prepare,
)
from transaction_table import EXPECTED, EXPIRED, FORGOTTEN

pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
    pytest.mark.kind("Java's clients"),
]
MORE = """\
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=100
"""
EXPIRING = """\
transactional.id.expiration.ms=1
transaction.remove.expired.transaction.cleanup.interval.ms=100
"""


@contextmanager
def running(broker: Broker) -> Iterator[Transactions]:
    with broker.running():
        it = Transactions("127.0.0.1", broker.port)
        yield it
        it.close()


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(classpath(), tmp_path / "broker", more=MORE)


def test_in_each_state(broker: Broker) -> None:
    with running(broker) as it:
        prepare(it)
        assert ask_all(it, bring(it)) == EXPECTED


def test_in_each_state_behind_a_restart(broker: Broker) -> None:
    with running(broker) as it:
        prepare(it)
        cells = bring(it)
    with running(broker) as it:
        await_coordinators(it)
        for cell in cells:
            await_state(it, cell, STATES[cell[0]].name)
        assert ask_all(it, cells) == EXPECTED | FORGOTTEN


def test_once_expired(broker: Broker) -> None:
    with running(broker) as it:
        prepare(it)
        cells = bring(it, {state for state, _ in EXPIRED})
    broker.properties.write_text(broker.properties.read_text() + EXPIRING)
    with running(broker) as it:
        await_coordinators(it)
        for cell in cells:
            await_state(it, cell, "")
        assert ask_all(it, cells) == EXPIRED
