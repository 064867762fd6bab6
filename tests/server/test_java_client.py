"""Promise: a program of Java's clients does all that it can do with a broker, in one start of the JVM;
Kafka's dump tool finds the store valid afterwards.
"""

from __future__ import annotations

from pathlib import Path

import built_programs as built
import kafka_tools
import pytest
from scenario import hold

import segstore

pytestmark = [
    pytest.mark.judge("Java's clients"),
    pytest.mark.skipif(bool(kafka_tools.why_not()), reason=str(kafka_tools.why_not())),
    pytest.mark.skipif(bool(built.missing("javac")), reason=str(built.missing("javac"))),
    pytest.mark.kind("clients' programs"),
]


def test_a_program_does_all_it_can(server: segstore.Server, store: segstore.Store) -> None:
    hold(built.java(server.bootstrap_servers), store, "Java")
    partitions = [Path(store.path) / f"{topic}-{n}" for topic in ("events", "results") for n in (0, 1)]
    dump = kafka_tools.dump_log(part / f"{0:020}.log" for part in partitions)
    assert dump.errors == []
    assert [len(dump.records(part)) for part in partitions[:2]] == [100, 100]
