"""Fixtures of a real Kafka cluster in which our replicas take part. What they import needs packages that may
be missing; the tests are skipped then.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

NODES = itertools.count(10)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A controller and a broker, which all tests of a module share."""
    from kafka_cluster import Cluster

    cluster = Cluster(tmp_path_factory.mktemp("kafka"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def apart(kafka: object, tmp_path: Path) -> Iterator[object]:
    """As `pair`, with a network between the brokers that can be cut."""
    from kafka_cluster import Cluster
    from kafka_pair import Network, Pair

    assert isinstance(kafka, Cluster)
    with Network(kafka) as network:
        made = Pair(kafka, next(NODES), tmp_path, network)
        try:
            made.begin()
            yield made
        finally:
            made.end()


@pytest.fixture
def pair(kafka: object, tmp_path: Path) -> Iterator[object]:
    """The cluster's broker, and a broker of ours that has just joined it."""
    from kafka_cluster import Cluster
    from kafka_pair import Pair

    assert isinstance(kafka, Cluster)
    made = Pair(kafka, next(NODES), tmp_path)
    try:
        made.begin()
        yield made
    finally:
        made.end()
