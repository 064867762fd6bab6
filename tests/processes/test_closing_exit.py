"""The interpreter ends, and nothing was closed: sent records are written, and nothing hangs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from stores import values
from waiting import PATIENCE

import segstore
from segstore.client.producer import producer as producer_module
from segstore.storage.store import store as store_module

pytestmark = pytest.mark.kind("interrupts")

HEAD = """
import asyncio, atexit, gc, logging, os, sys, threading, time
import segstore
logging.basicConfig(level=logging.WARNING)
store = segstore.open(sys.argv[1], config={"offsets.topic.num.partitions": 1})
store.create_topic("t")
def count(n, **settings):
    producer = segstore.Producer(store, **settings)
    for i in range(n):
        producer.send("t", b"%d" % i)
    return producer
def told(n):  # by a system call: what ends the process does not flush a buffer
    os.write(1, b"%d " % n)
"""

SCRIPTS = {
    "holds records": "producer = count(10_000); told(10_000)",
    "holds records that linger": "producer = count(100, linger_ms=60_000); told(100)",
    "was dropped": "count(10_000); told(10_000)",
    "many were dropped": "[count(1, linger_ms=60_000) for _ in range(200)]; told(200)",
    "in a cycle": "ring = [store, count(100, linger_ms=60_000)]; ring += [ring]; told(100); del ring, store",
    "within the block": """
        with store:
            producer = count(1000, linger_ms=60_000)
            told(1000)
            sys.exit()
        """,
    "exit in a thread": """
        producer = count(1000, linger_ms=60_000)
        told(1000)
        def work():
            producer.send("t", b"one more")
            told(1)
            sys.exit(3)
        threading.Thread(target=work).start()
        """,
    "a thread that is no daemon goes on": """
        # CPython 3.12.0 and 3.12.1 let nobody start a thread any more then, and a producer has one.
        producer = segstore.Producer(store, linger_ms=60_000)
        def work():
            main.join()
            for i in range(1000):
                producer.send("t", b"%d" % i)
            told(1000)
        main = threading.main_thread()
        threading.Thread(target=work).start()
        """,
    "daemon threads still send": """
        producer, began = segstore.Producer(store), threading.Barrier(4)
        def work(n):
            for i in range(1 << 40):
                producer.send("t", b"%d" % i)
                told(1)  # it was taken
                if i == 100:
                    began.wait()
        for n in range(3):
            threading.Thread(target=work, args=(n,), daemon=True).start()
        began.wait()
        """,
    "daemon threads send with producers of their own": """
        began = threading.Barrier(4)
        def work():
            producer = segstore.Producer(store, linger_ms=1000)
            for i in range(1 << 40):
                producer.send("t", b"%d" % i)
                told(1)
                if i == 100:
                    began.wait()
        for n in range(3):
            threading.Thread(target=work, daemon=True).start()
        began.wait()
        """,
    "daemon threads still append": """
        log, began = store.partition("t"), threading.Barrier(4)
        def work():
            for i in range(1 << 40):
                log.append(b"%d" % i)
                told(1)
                if i == 100:
                    began.wait()
        for n in range(3):
            threading.Thread(target=work, daemon=True).start()
        began.wait()
        """,
    "consumers in daemon threads": """
        producer, began = count(1000, linger_ms=60_000), threading.Barrier(5)
        told(1000)
        def work(how, **settings):
            consumer = segstore.Consumer(store, "t", auto_offset_reset="earliest", **settings)
            consumer.poll()
            began.wait()
            if how == "iterate":
                for record in consumer:
                    pass
            while True:
                consumer.poll(60_000)
        for group in ({}, {"group_id": "g"}):
            for how in ("poll", "iterate"):
                threading.Thread(target=work, args=(how,), kwargs=group, daemon=True).start()
        began.wait()
        """,
    "a handler of the application's closes": """
        atexit.register(store.close)
        producer = count(1000, linger_ms=60_000)
        told(1000)
        """,
    "a handler of the application's sends": """
        producer = segstore.Producer(store, linger_ms=60_000)
        atexit.register(lambda: (producer.send("t", b"last words"), told(1)))
        """,
    "a finalizer sends": """
        class Telemetry:
            def __init__(self):
                self.producer = segstore.Producer(store, linger_ms=60_000)
            def __del__(self):
                self.producer.send("t", b"last words")
                told(1)
        telemetry = Telemetry()
        del telemetry
        """,
    "a transaction is open": """
        producer = segstore.Producer(store, transactional_id="x", linger_ms=60_000)
        producer.init_transactions()
        for commit in (True, False):
            producer.begin_transaction()
            for i in range(10):
                producer.send("t", b"%d" % i)
            if commit:
                producer.commit_transaction()
        told(10)
        """,
    "a loop that is dropped": """
        async def main():
            global producer, consumer
            producer = segstore.AsyncProducer(store, linger_ms=60_000)
            consumer = segstore.AsyncConsumer(store, "t", group_id="g")
            for i in range(100):
                await producer.send("t", b"%d" % i)
            told(100)
            task = asyncio.ensure_future(consumer.poll(60_000))
            await asyncio.sleep(0.01)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        """,
    "asyncio.run without any close": """
        async def main():
            global producer, consumer
            producer = segstore.AsyncProducer(store, linger_ms=60_000)
            consumer = segstore.AsyncConsumer(store, "t", group_id="g")
            for i in range(100):
                await producer.send("t", b"%d" % i)
            told(100)
            asyncio.ensure_future(consumer.poll(60_000))
            await asyncio.sleep(0.01)
        asyncio.run(main())
        """,
    "a reader of its own": """
        producer = count(100, linger_ms=60_000)
        told(100)
        reader = segstore.open(sys.argv[1], mode="r")
        consumer = segstore.Consumer(reader, "t")
        threading.Thread(target=consumer.poll, args=(60_000,), daemon=True).start()
        """,
}
ENDS_BY_ITSELF = {"a loop that is dropped": "Task was destroyed but it is pending!"}


def run(tmp_path: Path, script: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """The script's end, and how many records it said that it had sent."""
    path = tmp_path / "script.py"
    path.write_text(HEAD + textwrap.dedent(script))
    ended = subprocess.run(
        [sys.executable, path, tmp_path / "store"], capture_output=True, text=True, timeout=PATIENCE
    )
    return ended, sum(map(int, ended.stdout.split()))


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_was_sent_before_the_end_is_written(tmp_path: Path, store_dir: Path, name: str) -> None:
    ended, sent = run(tmp_path, SCRIPTS[name])
    said = [line for line in ended.stderr.splitlines() if ENDS_BY_ITSELF.get(name, "\0") not in line]
    if name not in ENDS_BY_ITSELF:
        assert said == []
    for bad in ("Exception ignored", "Fatal Python error", "segstore."):
        assert bad not in "".join(said)
    assert ended.returncode == 0
    with segstore.open(store_dir) as store:
        assert len(values(store.partition("t"), isolation_level="read_committed")) >= sent > 0


AT_THE_VERY_END = {
    "the store is closed": "store.close()",
    "the store is closed with timeout=0": "store.close(timeout=0)",
    "a member of a group is closed": "consumer.close()",
    "the store is swept": "assert store.sweep() == ()",
    "another store is opened and written": """
        with segstore.open(store.path + "/../other") as other:
            other.create_topic("u")
            other.partition("u").append(b"y")
            reader = segstore.Consumer(other, "u", group_id="h", auto_offset_reset="earliest")
            assert len(reader.poll()) == 1
            reader.close()
        """,
    "a worker is given work": """
        worker.do(lambda: log.append(b"y"))
        worker.result()
        worker.end()
        """,
}
"""What a finalizer calls when all other threads have stopped for ever; none of them may be waited for."""


@pytest.mark.parametrize("name", AT_THE_VERY_END)
def test_a_finalizer_at_the_very_end_waits_for_no_thread(tmp_path: Path, store_dir: Path, name: str) -> None:
    script = f"""
        log = store.partition("t")
        log.append(b"x")
        consumer = segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest")
        assert len(consumer.poll()) == 1
        worker = segstore.threads.Worker("worker")
        worker.start()
        class Journal:
            def __del__(self):
                assert sys.is_finalizing()
                {textwrap.indent(textwrap.dedent(AT_THE_VERY_END[name]).strip(), " " * 16).strip()}
                told(1)
        journal = Journal()
        """
    ended, sent = run(tmp_path, script)
    assert (ended.returncode, ended.stderr, sent) == (0, "", 1)
    assert not segstore.check(store_dir)
    for path, topic, value in ((store_dir, "t", b"x"), (tmp_path / "other", "u", b"y")):
        if path.exists():
            with segstore.open(path) as store:
                assert values(store.partition(topic))[:1] == [value]


def test_a_finalizer_is_refused_what_a_thread_was_in_the_midst_of(tmp_path: Path, store_dir: Path) -> None:
    """The interpreter has stopped it there for ever, with its locks."""
    script = """
        from queue import SimpleQueue
        store.partition("t").append(b"x")
        inbox = store.engine.inbox
        inbox._adopter.adopt = SimpleQueue().get  # of C: a function's frame would keep all of this module
        threading.Thread(target=inbox.adopt, args=("id", []), daemon=True).start()
        while inbox._lock.acquire(False):
            inbox._lock.release()
            time.sleep(0.001)
        class Journal:
            def __del__(self):
                for call in (store.close, store.sweep, lambda: inbox.adopt("other", [])):
                    try:
                        call()
                    except segstore.SegstoreError as error:
                        assert "the interpreter ends" in str(error)
                        told(1)
        journal = Journal()
        """
    ended, refused = run(tmp_path, script)
    assert (ended.returncode, ended.stderr, refused) == (0, "", 3)
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [b"x"]


def test_a_kill_loses_what_was_not_written(tmp_path: Path, store_dir: Path) -> None:
    """os._exit is one: nothing of ours runs, and what the next open finds is whole."""
    ended, _ = run(tmp_path, "producer = count(10, linger_ms=60_000); os._exit(5)")
    assert (ended.returncode, ended.stderr) == (5, "")
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == []


def test_what_can_not_be_written_at_the_end_is_told(tmp_path: Path, store_dir: Path) -> None:
    script = """
        from segstore.client.producer import ending
        ending.CLOSE_TIMEOUT = 0.2
        store.partition("t").append(b"x")
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        producer = segstore.Producer(store, linger_ms=60_000)
        producer.send("t", b"x" * 100_000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1))
        """
    ended, _ = run(tmp_path, script)
    assert ended.returncode == 0
    assert "was closed before 1 records were written" in ended.stderr
    assert "Traceback" not in ended.stderr
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [b"x"]


def test_a_daemon_thread_of_the_application_s_is_told_by_name(tmp_path: Path, store_dir: Path) -> None:
    """Where it catches it; other exceptions of daemon threads are shown as ever."""
    script = """
        def work(producer, other):
            try:
                while True:
                    producer.send("t", b"x")
            except segstore.ClientClosedError as error:
                os.write(2, b"told: " + str(error).encode())
                ended.set()
        def fails():
            ended.wait()
            raise ZeroDivisionError("its own")
        ended = threading.Event()
        producer = segstore.Producer(store)
        threads = [threading.Thread(target=work, args=(producer, 0), daemon=True),
                   threading.Thread(target=fails, daemon=True)]
        for thread in threads:
            thread.start()
        """
    # Registered before segstore's own, this runs after it.
    path = tmp_path / "script.py"
    path.write_text(
        "import atexit\natexit.register(lambda: [thread.join() for thread in threads])\n"
        + HEAD
        + textwrap.dedent(script)
    )
    ended = subprocess.run(
        [sys.executable, path, tmp_path / "store"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode == 0
    assert "told: " in ended.stderr
    assert "the interpreter ends" in ended.stderr
    assert "ZeroDivisionError: its own" in ended.stderr


def test_finalizers_need_no_name_of_their_modules(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that ends sets them to None, and what is kept by its hooks is finalized after that."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        producer = segstore.Producer(store)
        for module in (store_module, producer_module):
            for name in list(vars(module)):
                if not name.startswith("__"):
                    monkeypatch.setitem(vars(module), name, None)
        producer.__del__()
        store.context.closed, closed = True, store.context.closed  # it is told so to the end
        store.__del__()
        store.context.closed = closed
        monkeypatch.undo()
        with pytest.raises(segstore.ClientClosedError, match="is gone"):
            producer.send("t", b"x")
