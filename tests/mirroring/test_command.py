"""`segstore mirror` and `segstore end-mirror`: as processes that are ended and killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from cli import ok, run, start_program
from mirrors import assert_equal
from waiting import PATIENCE, until

import segstore
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")

HEARS = ("--set", "metadata.max.age.ms=100", "--set", "fetch.max.wait.ms=50")


def test_once_ends_with_all_that_there_was(store_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    with Broker(source, topics={"a": 2, "b": 1}) as broker:
        for i in range(10):
            broker.store.partition("a", i % 2).append(b"%d" % i)
        told = ok("mirror", broker.bootstrap_servers, store_dir, "--topics", "a,c", "--once")
        assert "mirrored 1 topics, 2 partitions, 10 offsets" in told.stdout
        assert "UNKNOWN_TOPIC_OR_PARTITION" in told.stderr
    assert_equal(store_dir, source)
    assert ok("consume", "a", "--store", store_dir).stdout.count("\n") == 10
    assert "is an ordinary store with 2 mirrored partitions" in ok("end-mirror", store_dir).stdout
    with segstore.open(store_dir) as store:
        assert store.partition("a").append(b"own") == 5


def test_properties_of_kafka_s_tools_are_taken(store_dir: Path, tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={module} username="alice" password="secret";\n'
    )
    users = {"security_protocol": "SASL_PLAINTEXT", "sasl_users": {"alice": "secret"}}
    with Broker(topics=["a"], **users) as broker:
        broker.store.partition("a").append(b"x")
        ok("mirror", broker.bootstrap_servers, store_dir, "--once", "--command-config", properties)


ENDED = {signal.SIGINT: 130, signal.SIGTERM: 0, signal.SIGKILL: -9}


@pytest.mark.parametrize("number", ENDED)
def test_a_mirror_that_is_ended_goes_on_when_it_is_called_again(
    store_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    source = tmp_path / "source"
    with Broker(source, topics=["a"]) as broker:
        log = broker.store.partition("a")
        for round in range(2):
            process = start_program("mirror", broker.bootstrap_servers, store_dir, *HEARS)
            log.append_batch([b"%d of %d" % (i, round) for i in range(3000)], batch_bytes=1000)
            until(lambda: has(store_dir, log.end_offset))
            process.send_signal(number)
            _, told = process.communicate(timeout=PATIENCE)
            assert process.returncode == ENDED[number]
            levels = {line.split()[1] for line in told.splitlines()}
            assert levels <= {b"INFO"}, told
        assert segstore.check(store_dir) == []
        ok("mirror", broker.bootstrap_servers, store_dir, "--once", *HEARS)
    assert_equal(store_dir, source)


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        (("--isolation-level", "read_committed"), 0),
        (("--isolation", "committed"), 0),
        (("--isolation-level", "read_uncommitted"), 1),
        ((), 1),
    ],
    ids=["committed", "committed, by the old name", "uncommitted", "by default"],
)
def test_how_far_open_transactions_are_mirrored(store_dir: Path, given: tuple[str, ...], ends: int) -> None:
    with Broker(topics=["a"]) as broker:
        producer = segstore.Producer(broker.store, transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("a", b"open").get(PATIENCE)
        ok("mirror", broker.bootstrap_servers, store_dir, "--once", *given, *HEARS)
        producer.abort_transaction()
        producer.close()
    with segstore.open(store_dir, mode="r") as reader:
        assert reader.partition("a").end_offset == ends


def has(directory: Path, end: int) -> bool:
    """Whether a reader of the mirror sees this much."""
    if not (directory / "a-0" / "partition.metadata").exists():
        return False
    with segstore.open(directory, mode="r") as reader:
        return "a" in reader.topics() and reader.partition("a").end_offset >= end


WRONG = {
    "no directory": (("127.0.0.1:1",), 2, "Missing argument"),
    "nobody listens": (("127.0.0.1:1", "m"), 1, "segstore: no broker answers"),
    "no address": (("here", "m"), 1, "must be HOST:PORT"),
    "a setting": (("127.0.0.1:1", "m", "--set", "fetch.size=1"), 1, "fetch.size"),
    "an internal topic": (("127.0.0.1:1", "m", "-t", "__consumer_offsets"), 1, "is internal"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, status, told = WRONG[name]
    result = run("mirror", *arguments)
    assert (result.exit_code, told in result.output) == (status, True), result.output
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_what_is_no_mirror(tmp_path: Path) -> None:
    segstore.open(tmp_path / "own").close()
    for path in (tmp_path / "own", tmp_path / "absent"):
        result = run("end-mirror", path)
        assert (result.exit_code, result.stderr) == (1, f"segstore: {path} is no mirror\n")
    assert not (tmp_path / "absent").exists()
