"""Work that begins with relative paths in one current directory and goes on in another: `CASES`, a row for
each way by which a path comes into a process. `python changed_directories.py CASE PLACE BASE` runs one.

A case is a generator. Up to its first yield it runs in BASE/here, where it opens by relative paths; then the
current directory is changed to a PLACE, where its stores go on, close, and are looked at by absolute paths.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import ssl
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

if __name__ == "__main__":
    from relative_paths import RelativePaths

    NET = RelativePaths()

from certificates import certificates
from waiting import PATIENCE, until

import segstore

Case = Callable[[Path], Generator[None, None, None]]
SMALL = {"segment.bytes": 1000, "file.delete.delay.ms": 0}
LIMIT = PATIENCE * 1000
QUICK = {"metadata.max.age.ms": 50, "fetch.max.wait.ms": 50, "retry.backoff.ms": 5}


def values(store: segstore.Store, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in store.partition(topic).scan()]


def numbered(count: int, begin: int = 0) -> list[bytes]:
    return [b"%d-" % number + b"x" * 100 for number in range(begin, begin + count)]


def fill(store: segstore.Store, count: int = 30, begin: int = 0, **how: Any) -> None:
    log = store.partition("t")
    for value in numbered(count, begin):
        log.append(value, **how)


@contextmanager
def reopened(path: Path, mode: str = "r") -> Iterator[segstore.Store]:
    with segstore.open(path, mode) as store:
        yield store


def writer(here: Path) -> Generator[None, None, None]:
    store = segstore.open("log", config={"offsets.topic.num.partitions": 1})
    store.create_topic("t", config=SMALL)
    store.create_topic("gone", config=SMALL)
    fill(store)
    yield
    fill(store, begin=30)
    log = store.partition("t")
    log.flush()
    log.delete_records(20)
    store.create_topic("compacted", config={**SMALL, "cleanup.policy": "compact"})
    for number in range(100):
        store.partition("compacted").append(b"x" * 50, key=b"%d" % (number % 3))
    store.alter_topic("t", {"retention.bytes": 3000})
    store.sweep()
    store.delete_topic("gone")
    assert len(values(store, "compacted")) < 100
    assert 20 < log.start_offset < log.end_offset == 60
    assert log.read_one(59).value == numbered(60)[-1]
    store.close()
    with reopened(here / "log") as reader:
        assert sorted(reader.topics()) == ["compacted", "t"]
        assert values(reader) == numbered(60)[reader.partition("t").start_offset :]


def clients(here: Path) -> Generator[None, None, None]:
    store = segstore.open("log", config={"offsets.topic.num.partitions": 1})
    store.create_topic("t", config=SMALL)
    producer = segstore.Producer(store, transactional_id="one")
    consumer = segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest")
    yield
    producer.init_transactions()
    producer.begin_transaction()
    for value in numbered(20):
        producer.send("t", value)
    producer.commit_transaction()
    found: list[bytes | None] = []
    while len(found) < 20:
        found += [record.value for each in consumer.poll(timeout_ms=LIMIT).values() for record in each]
    consumer.commit()
    consumer.close()
    producer.close()
    store.close()
    assert found == numbered(20)
    with reopened(here / "log", "rw") as store:
        assert segstore.Groups(store).committed("g")[segstore.TopicPartition("t", 0)].offset == 21


def reader(here: Path) -> Generator[None, None, None]:
    with segstore.open(here / "log") as store:
        store.create_topic("t", config=SMALL)
        fill(store)
        seen = segstore.open("log", "r")
        log = seen.partition("t")
        yield
        fill(store, begin=30)
        store.create_topic("later")
        assert [record.value for record in log.scan()] == numbered(60)
        assert sorted(seen.topics()) == ["later", "t"]
        store.delete_topic("later")
        assert sorted(seen.topics()) == ["t"]
        seen.close()


def replicas(here: Path) -> Generator[None, None, None]:
    paths = ["d0", "d1", "d2"]
    settings = {"min.insync.replicas": 2, "replica.lag.time.max.ms": 500}
    store = segstore.open_replicated(paths, witness="w", config=settings)
    store.create_topic("t", replication_factor=3, config=SMALL)
    fill(store, acks="all")
    yield
    fill(store, begin=30, acks="all")
    store.partition("t").delete_records(20)
    store.heal()
    store.close()
    with segstore.open_replicated([here / path for path in paths], witness=here / "w") as store:
        assert values(store) == numbered(60)[store.partition("t").start_offset :]


def replaced(here: Path) -> Generator[None, None, None]:
    """A directory is replaced by a relative path, in a store that has absolute ones."""
    paths = [here / path for path in ("d0", "d1", "d2")]
    with segstore.open_replicated(paths) as store:
        store.create_topic("t", replication_factor=3, config=SMALL)
        fill(store, acks="all")
    shutil.rmtree(paths[2])
    store = segstore.open_replicated(paths)
    store.replace_directory(2, "new")
    yield
    fill(store, begin=30, acks="all")
    until(lambda: len(store.describe_partition("t", 0).isr) == 3)
    store.close()
    with segstore.open_replicated([*paths[:2], here / "new"]) as store:
        assert values(store) == numbered(60)


def waits(here: Path) -> Generator[None, None, None]:
    yield from while_waiting(
        lambda files: segstore.open("log", files=files, timeout=PATIENCE), lambda: segstore.open(here / "log")
    )


def waits_with_replicas(here: Path) -> Generator[None, None, None]:
    paths = ["d0", "d1", "d2"]
    yield from while_waiting(
        lambda files: segstore.open_replicated(paths, witness="w", files=files, timeout=PATIENCE),
        lambda: segstore.open_replicated([here / path for path in paths], witness=here / "w"),
    )


def while_waiting(
    opened: Callable[[segstore.files.Files], segstore.Store], holder: Callable[[], segstore.Store]
) -> Generator[None, None, None]:
    """Yield while an open waits until the store is closed elsewhere."""
    tried = Event()

    class Telling(segstore.files.Files):
        def lock_holder(self, path: Any) -> int | None:
            """Tell that somebody was found to have the store: the wait begins."""
            tried.set()
            return super().lock_holder(path)

    held = holder()
    held.create_topic("t", config=SMALL)
    found: list[segstore.Store] = []
    thread = Thread(target=lambda: found.append(opened(Telling())))
    thread.start()
    assert tried.wait(PATIENCE)
    yield
    held.close()
    thread.join(PATIENCE)
    fill(found[0])
    found[0].close()
    with holder() as store:
        assert values(store) == numbered(30)


def standby(here: Path) -> Generator[None, None, None]:
    """TLS, by files that are given by relative paths too."""
    secured = certificates(here)
    settings = {"security.protocol": "SSL", "ssl.ca.location": secured.authority.name}
    with segstore.open(here / "primary") as store:
        store.create_topic("t", config=SMALL)
        server = segstore.serve(
            store, port=0, security_protocol="SSL", ssl_keystore_location=secured.server.name
        )
        held = segstore.follow(server.bootstrap_servers, "standby", config={**QUICK, **settings})
        fill(store)
        assert held.wait_caught_up(LIMIT)
        yield
        server.close()
        server = segstore.serve(
            store, port=server.port, security_protocol="SSL", ssl_keystore_location=str(secured.server)
        )
        fill(store, begin=30)
        assert held.wait_caught_up(LIMIT), held.error
        promoted = held.promote("reachable")
        fill(promoted, 30, begin=60)
        promoted.close()
        server.close()
    with reopened(here / "standby") as copy:
        assert values(copy) == numbered(90)


def promoted(here: Path) -> Generator[None, None, None]:
    with segstore.open(here / "primary") as store, segstore.serve(store, port=0) as server:
        store.create_topic("t", config=SMALL)
        with segstore.follow(server.bootstrap_servers, here / "standby", config=QUICK) as held:
            fill(store)
            assert held.wait_caught_up(LIMIT)
    leads = segstore.promote("standby", "dead")
    yield
    fill(leads, begin=30)
    leads.close()
    with reopened(here / "standby") as copy:
        assert values(copy) == numbered(60)


def mirrored(here: Path) -> Generator[None, None, None]:
    with segstore.open(here / "source") as store, segstore.serve(store, port=0) as server:
        store.create_topic("t", config=SMALL)
        fill(store)
        mirror = segstore.mirror(server.bootstrap_servers, "mirror", config=QUICK)
        assert mirror.wait_caught_up(LIMIT)
        yield
        fill(store, begin=30)
        # `wait_caught_up` waits for the records of the first fetch, and these are there.
        until(lambda: mirror.wait(0) or mirror.store.partition("t").end_offset == 60)
        mirror.close()
    with reopened(here / "mirror") as copy:
        assert values(copy) == numbered(60)


def mirrored_to(here: Path) -> Generator[None, None, None]:
    with (
        segstore.open(here / "source") as store,
        segstore.open(here / "target") as target,
        segstore.serve(target, port=0) as server,
    ):
        store.create_topic("t", config=SMALL)
        fill(store)
        sent = segstore.mirror_to("source", server.bootstrap_servers, config=QUICK)
        assert sent.wait_caught_up(LIMIT)
        yield
        fill(store, begin=30)
        assert sent.wait_caught_up(LIMIT)
        sent.close()
        assert values(target) == numbered(60)


def served(here: Path) -> Generator[None, None, None]:
    """The files of the settings are read when the server starts, after the settings were made."""
    from segstore.server.handlers import HANDLERS
    from segstore.server.network.server import start
    from segstore.server.settings import ServerConfig
    from segstore.wire.cluster import Cluster
    from segstore.wire.settings import WireConfig

    secured = certificates(here)
    (here / "users").write_text("alice:secret\n")
    (here / "mapped").symlink_to("users")
    of_server = ServerConfig.parse(
        {
            "security_protocol": "SASL_SSL",
            "sasl_users": Path("mapped"),
            "ssl_keystore_location": secured.server.name,
            "ssl_truststore_location": secured.authority.name,
            "ssl_client_auth": "required",
        }
    )
    of_client = WireConfig.parse(
        {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": secured.authority.name,
            "ssl.certificate.location": secured.client.name,
            "ssl.key.location": secured.client.name,
            "sasl.username": "alice",
            "sasl.password": "secret",
        }
    )
    store = segstore.open("log")
    store.create_topic("t", config=SMALL)
    yield
    with start(store, "127.0.0.1", 0, None, of_server, HANDLERS) as server:
        cluster = Cluster(server.bootstrap_servers, of_client)
        assert "t" in cluster.metadata(["t"]).topics
        cluster.close()
    fill(store)
    store.close()


def broker_of_tests(here: Path) -> Generator[None, None, None]:
    from segstore.testing import Broker

    broker = Broker("log", topics=["t"])
    yield
    fill(broker.store)
    broker.close()
    with reopened(here / "log") as copy:
        assert values(copy) == numbered(30)


def staged(here: Path) -> Generator[None, None, None]:
    from segstore.storage.staging import Stager, abort, seal

    with segstore.open(here / "log") as store:
        store.create_topic("t")
        kept, dropped = Stager("log"), Stager("log")
        yield
        for stager in (kept, dropped):
            stager.append_batch("t", 0, numbered(30))
        done = kept.finish()
        abort([dropped.finish()])
        seal(done.path, "one", [done])
        assert values(store) == numbered(30)


def imported(here: Path) -> Generator[None, None, None]:
    from segstore.storage.bulk_import import importing

    with importing("log", "t", 1) as (_, stager):
        yield
        stager.append_batch("t", 0, numbered(30))
    with reopened(here / "log") as copy:
        assert values(copy) == numbered(30)


def import_given_up(here: Path) -> Generator[None, None, None]:
    """A store that was made for it is removed again."""
    from segstore.storage.bulk_import import importing

    class GivenUpError(Exception):
        pass

    try:
        with importing("log", "t", 1) as (_, stager):
            yield
            stager.append_batch("t", 0, numbered(30))
            raise GivenUpError
    except GivenUpError:
        assert not (here / "log").exists()


def copied(here: Path) -> Generator[None, None, None]:
    written(here)
    yield from while_running(lambda at: segstore.copy("log", "copied", progress=at))
    with reopened(here / "copied") as copy:
        assert values(copy) == numbered(30)


def checked(here: Path) -> Generator[None, None, None]:
    written(here)
    yield from while_running(lambda at: segstore.check("log", progress=at) == [] or None)


def repaired(here: Path) -> Generator[None, None, None]:
    from segstore.storage.repair import repair

    written(here)
    for index in (here / "log" / "t-0").glob("*.index"):
        index.write_bytes(b"\1" * 24)
    yield from while_running(lambda at: repair("log", progress=at))
    assert segstore.check(here / "log") == []


def while_running(call: Callable[[Callable[[int], None]], object]) -> Generator[None, None, None]:
    """Yield within a call, at the first progress that it tells of: this thread changes the directory then."""
    begun, changed, failed = Event(), Event(), []

    def at(_: int) -> None:
        begun.set()
        assert changed.wait(PATIENCE)

    def run() -> None:
        try:
            call(at)
        except BaseException as error:
            failed.append(error)
        finally:
            begun.set()

    thread = Thread(target=run)
    thread.start()
    assert begun.wait(PATIENCE)
    yield
    changed.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def cut(here: Path) -> Generator[None, None, None]:
    from segstore.testing import Broker

    with Broker(here / "old", topics=["t"]) as broker:
        with segstore.follow(broker.bootstrap_servers, here / "new", config=QUICK) as held:
            assert held.wait_caught_up(LIMIT)
        broker.store.partition("t").append(b"alone")
    segstore.promote(here / "new", "dead").close()
    with Broker(here / "new") as leads:
        back = segstore.follow(leads.bootstrap_servers, "old", config=QUICK)
        assert back.wait_caught_up(LIMIT)
        found = segstore.cut_records("old")
        yield
        assert [record.value for record in found] == [b"alone"]
        assert [record.value for record in back.excess()] == [b"alone"]
        back.close()


def files_of_a_topic(here: Path) -> Generator[None, None, None]:
    from segstore.filetree import file_tree

    store = segstore.open("log")
    tree = file_tree(store, "files", None)
    yield
    tree.mkdirs("/a")
    tree.write("/a/b", b"x" * 1000)
    tree.rename("/a/b", "/a/c")
    store.close()


def spark_source(here: Path) -> Generator[None, None, None]:
    """The reader is sent to a task in a directory of its own, before its first method is called."""
    from pyspark.sql.types import BinaryType, LongType, StructType

    from segstore.spark.source import stream_reader

    written(here)
    columns = StructType().add("value", BinaryType()).add("offset", LongType())
    options = {"path": "log", "subscribe": "t", "startingOffsets": "earliest"}
    one, other = stream_reader(options, columns), stream_reader(options, columns)
    yield
    begin = one.initialOffset()
    parts = one.partitions(begin, one.latestOffset(begin, one.getDefaultReadLimit()))
    task = pickle.loads(pickle.dumps(other))
    found = [batch.column("value").to_pylist() for part in parts for batch in task.read(part)]
    one.stop()
    assert [value for each in found for value in each] == numbered(30)


def spark_batch(here: Path) -> Generator[None, None, None]:
    import pyarrow
    from pyspark.sql.types import BinaryType, LongType, StructType

    from segstore.spark import sink, source

    written(here)
    columns = StructType().add("value", BinaryType()).add("offset", LongType())
    reads = source.reader({"path": "log", "subscribe": "t"}, columns)
    writes = sink.writer({"path": "log", "topic": "u"}, StructType().add("value", BinaryType()), False)
    yield
    (part,) = reads.partitions()
    found = [batch.column("value").to_pylist() for batch in reads.read(part)]
    assert [value for each in found for value in each] == numbered(30)
    rows = pyarrow.RecordBatch.from_pydict({"value": pyarrow.array(numbered(5), pyarrow.binary())})
    writes.commit([writes.write(iter([rows]))])
    with reopened(here / "log") as store:
        assert values(store, "u") == numbered(5)


def written(here: Path) -> None:
    with segstore.open(here / "log") as store:
        store.create_topic("t", config=SMALL)
        store.create_topic("u")
        fill(store)


CASES: dict[str, Case] = {
    "open": writer,
    "producer and consumer": clients,
    "open to read": reader,
    "open_replicated": replicas,
    "replace_directory": replaced,
    "open that waits": waits,
    "open_replicated that waits": waits_with_replicas,
    "follow": standby,
    "promote": promoted,
    "mirror": mirrored,
    "mirror_to": mirrored_to,
    "settings of a server and a client": served,
    "testing.Broker": broker_of_tests,
    "staging": staged,
    "an import": imported,
    "an import that is given up": import_given_up,
    "copy": copied,
    "check": checked,
    "repair": repaired,
    "cut_records": cut,
    "a file tree": files_of_a_topic,
    "Spark's stream": spark_source,
    "Spark's batches": spark_batch,
}
PLACES = ("a twin", "an empty directory", "a deleted directory")


# --- one run --------------------------------------------------------------------------------------


def contents(path: Path) -> dict[str, bytes | None]:
    found = sorted(path.rglob("*"))
    return {str(each.relative_to(path)): each.read_bytes() if each.is_file() else None for each in found}


def change(place: str, here: Path, there: Path) -> dict[str, bytes | None]:
    """Change the current directory; return what is in the new one."""
    if place == "a twin":
        shutil.copytree(here, there, symlinks=True)
    else:
        there.mkdir()
    os.chdir(there)
    if place == "a deleted directory":
        there.rmdir()
    return contents(there) if there.exists() else {}


def run(case: str, place: str, base: Path) -> list[str]:
    """Run a case; return the relative paths that were used after the change."""
    here, there = base / "here", base / "there"
    here.mkdir()
    os.chdir(here)
    work = CASES[case](here)
    next(work)
    before = change(place, here, there)
    NET.begin()
    try:
        assert next(work, "ended") == "ended"
    finally:
        NET.end()
    assert (contents(there) if there.exists() else {}) == before
    for store in here.rglob(".segstore"):
        assert segstore.check(store.parent) == [], store
    return NET.noted


USES: dict[str, Callable[[], object]] = {
    "C's open": lambda: segstore.files.Files().open("x"),
    "C's stat": lambda: segstore.files.Files().exists("x"),
    "C's realpath": lambda: segstore.files.Files().real_path("x"),
    "os.path.abspath": lambda: os.path.abspath("x"),
    "open": lambda: open("x"),  # noqa: SIM115
    "os.stat": lambda: os.stat("x"),
    "os.path.exists": lambda: os.path.exists("x"),
    "os.listdir": lambda: os.listdir("x"),
    "os.mkdir": lambda: os.mkdir("x/y"),
    "os.rename": lambda: os.rename("x", "/x"),
    "os.replace": lambda: os.replace("/x", "x"),
    "os.unlink": lambda: os.unlink("x"),
    "pathlib": lambda: Path("x").exists(),
    "a certificate": lambda: ssl.create_default_context(cafile="x"),
    "a key": lambda: ssl.create_default_context().load_cert_chain("/x", "x"),
}
"""Relative paths, each of which must be noted: `python changed_directories.py` shows how often it was."""


def noted(use: Callable[[], object]) -> int:
    """Return how many relative paths are noted in a call, which fails."""
    before = len(NET.noted)
    NET.begin()
    with suppress(OSError):
        use()
    NET.end()
    return len(NET.noted) - before


if __name__ == "__main__" and len(sys.argv) == 1:
    print(json.dumps({name: noted(use) for name, use in USES.items()}))
elif __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
