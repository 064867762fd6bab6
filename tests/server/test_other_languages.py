"""Promise: programs of Go's and Node's clients, and kcat, do all that they can do with a broker; Kafka's
dump tool finds the store valid afterwards.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import built_programs as built
import kafka_tools
import pytest
from scenario import COUNT, VALUES, Told, hold
from waiting import PATIENCE

import segstore

pytestmark = pytest.mark.kind("clients of other languages")

ATTRIBUTES_AT = 21  # in a record batch
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(bool(built.missing(tool)), reason=str(built.missing(tool)))


@pytest.mark.parametrize(
    ("name", "run"),
    [
        pytest.param("franz-go", lambda at: built.go("franz_go", at), marks=needs("go"), id="franz-go"),
        pytest.param("sarama", lambda at: built.go("sarama", at), marks=needs("go"), id="sarama"),
        pytest.param("kafkajs", lambda at: built.node("kafkajs", at), marks=needs("npm"), id="kafkajs"),
    ],
)
def test_a_program_does_all_it_can(
    server: segstore.Server, store: segstore.Store, name: str, run: Callable[[str], Told]
) -> None:
    hold(run(server.bootstrap_servers), store, name)
    judge(store, "events", "results")


def judge(store: segstore.Store, *topics: str) -> None:
    """Have Kafka's dump tool read the topics' segments, where it can be had."""
    if kafka_tools.why_not() is None:
        logs = [log for topic in topics for log in sorted(Path(store.path).glob(f"{topic}-*/*.log"))]
        assert kafka_tools.dump_log(logs).errors == []


@needs("kcat")
@pytest.mark.parametrize("codec", CODECS)
def test_kcat(server: segstore.Server, store: segstore.Store, codec: str) -> None:
    """Debian's kcat has an old librdkafka, which compresses only where it finds the versions it knows."""
    store.create_topic("events", 2)

    def kcat(*arguments: str, text: str = "") -> str:
        command = ["kcat", "-q", "-b", server.bootstrap_servers, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    lines = "".join(f"k{n}:{value.decode()}\n" for n, value in enumerate(VALUES))
    kcat("-P", "-t", "events", "-K:", "-z", codec, "-H", "from=kcat", text=lines)
    records = [record for n in (0, 1) for record in store.partition("events", n).read(0)]
    assert sorted(record.value for record in records) == sorted(VALUES)
    assert {tuple(record.headers) for record in records} == {(("from", b"kcat"),)}
    read = kcat("-C", "-t", "events", "-o", "beginning", "-e", "-f", "%k:%s\n")
    assert sorted(read.splitlines()) == sorted(lines.splitlines())
    grouped = kcat(
        *("-G", "readers", "-X", "auto.offset.reset=earliest", "-X", "enable.partition.eof=true", "-e"),
        *("-c", str(COUNT), "-f", "%s\n", "events"),
    )
    assert sorted(grouped.splitlines()) == sorted(value.decode() for value in VALUES)
    with segstore.Consumer(store, group_id="readers") as reader:
        at = [reader.committed(segstore.TopicPartition("events", number)) for number in (0, 1)]
    assert sum(each or 0 for each in at) == COUNT
    assert 'topic "events" with 2 partitions' in kcat("-L")
    firsts = [log.read_bytes()[: ATTRIBUTES_AT + 2] for log in Path(store.path).glob("events-*/*.log")]
    assert codec in {CODECS[first[-1] & 7] for first in firsts if first}
