"""Promise: an error that nobody keeps is freed at once, with all that its frames refer to. No error of
segstore keeps itself alive, by a traceback whose frames have a variable that leads back to it.

Each case does what must fail, as an application would, within a function of its own. Nothing that the garbage
collector finds afterwards may be an exception.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import importlib
import os
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from faults import MUTATING, FailingFiles
from raising import kept_raises
from waiting import PATIENCE

import segstore
from segstore import Consumer, Producer, SegstoreError, TopicPartition
from segstore.client.aio import AsyncProducer
from segstore.errors import (
    KafkaTimeoutError,
    MissingPackageError,
    Needing,
    SinkClosedError,
    StorageError,
    copy_of,
)
from segstore.storage.staging import Stager, seal

BIG = [b"x" * 100_000] * 100  # an append that is encoded while it is written


@contextmanager
def collected() -> Iterator[list[BaseException]]:
    """The exceptions with a traceback that only the garbage collector can free, once the block is over. Those
    without one refer to nothing: a closed client that is in a cycle may keep some.
    """
    found: list[BaseException] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        errors = (one for one in gc.garbage if isinstance(one, BaseException))
        found += (one for one in errors if one.__traceback__ is not None)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_what_is_found() -> None:
    def keep() -> None:
        try:
            raise ValueError("kept")
        except ValueError as error:
            kept = error
        assert kept

    with collected() as found:
        keep()
    assert [str(error) for error in found] == ["kept"]
    found.clear()


class Scene:
    """A store of topic "t", of two partitions with a record each, whose files refuse the calls of `fail`."""

    def __init__(self, path: Path) -> None:
        self.path, self.files = path, FailingFiles(MUTATING, OSError(errno.ENOSPC, "full"), 0)
        self.store = segstore.open(path, files=self.files)
        self.store.create_topic("t", 2)
        self.log, self.other = self.store.partition("t"), self.store.partition("t", 1)
        for log in (self.log, self.other):
            log.append(b"there")
        self.store.flush()

    @contextmanager
    def failing(self, *names: str, code: int = errno.ENOSPC) -> Iterator[None]:
        self.files.names, self.files.fault = frozenset(names), OSError(code, os.strerror(code))
        self.files.arm(1, 1 << 30)
        yield
        self.files.arm(0)


Case = Callable[[Scene], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__.replace("_", " ")] = function
    return function


def refused(do: Callable[[], object], *kinds: type[BaseException]) -> None:
    """As an application catches an error: its frame, and those above, are in the traceback."""
    failed = False
    expected = kinds or (SegstoreError,)
    try:
        do()
    except expected:
        failed = True
    assert failed


# --- logs and the store ---------------------------------------------------------------------------


@case
def append(scene: Scene) -> None:
    with scene.failing("pwrite"):
        refused(lambda: scene.log.append(b"x"))


@case
def append_where_nothing_can_be_taken_back(scene: Scene) -> None:
    with scene.failing("pwrite", "truncate", "unlink"):
        for _ in range(3):
            refused(lambda: scene.log.append(b"x"))


@case
def append_batch(scene: Scene) -> None:
    with scene.failing("pwrite"):
        refused(lambda: scene.log.append_batch([b"x"] * 1000, batch_bytes=100))


@case
def a_long_append(scene: Scene) -> None:
    with scene.failing("pwrite"):
        refused(lambda: scene.log.append_batch(BIG))


@case
def a_long_compressed_append(scene: Scene) -> None:
    with scene.failing("pwrite", "pwritev"):
        refused(lambda: scene.log.append_batch(BIG, compression="lz4"))


@case
def append_over_a_roll(scene: Scene) -> None:
    scene.store.alter_topic("t", {"segment.bytes": 1000})
    with scene.failing("open", "allocate", "sync_dir", "rename"):
        for _ in range(3):
            with suppress(SegstoreError):
                scene.log.append_batch([b"x" * 300] * 9, batch_bytes=300)


@case
def bad_arguments(scene: Scene) -> None:
    refused(lambda: scene.log.append("text"))  # type: ignore[arg-type]
    refused(lambda: scene.log.append(b"x", headers=[(1, b"x")]))  # type: ignore[list-item]
    refused(lambda: scene.log.append_batch([b"x", 1]))
    refused(lambda: scene.log.append(b"x" * (2 << 20)))
    refused(lambda: scene.log.read(-1))
    refused(lambda: scene.store.partition("missing"))


@case
def flush(scene: Scene) -> None:
    scene.log.append(b"x")
    with scene.failing("sync", code=errno.EIO):
        refused(scene.log.flush)
    refused(scene.log.flush)  # fenced
    refused(lambda: scene.log.append(b"x"))


@case
def flush_of_all(scene: Scene) -> None:
    scene.log.append(b"x")
    scene.other.append(b"x")
    with scene.failing("sync", code=errno.EIO):
        refused(scene.store.flush)


@case
def close(scene: Scene) -> None:
    scene.log.append(b"x")
    scene.other.append(b"x")
    with scene.failing("sync", code=errno.EIO):
        # Without the ExitStack around it, which keeps in a variable of its own what it raises: Python's.
        refused(scene.store.engine.close)
    scene.store.close()


@case
def topics(scene: Scene) -> None:
    for names in ({"mkdir"}, {"rename"}, {"pwrite"}, {"sync_dir"}, {"sync"}):
        with scene.failing(*names):
            refused(lambda: scene.store.create_topic("u", 2), SegstoreError, OSError)
    with scene.failing("rename"):
        refused(lambda: scene.store.alter_topic("t", {"retention.ms": 5}), SegstoreError, OSError)
        refused(lambda: scene.store.delete_topic("t"), SegstoreError, OSError)
    refused(lambda: scene.store.create_topic("t"))
    refused(lambda: scene.store.delete_topic("missing"))


@case
def delete_records(scene: Scene) -> None:
    with scene.failing("pwrite", "rename"):
        refused(lambda: scene.log.delete_records(1))


@case
def sweep(scene: Scene) -> None:
    scene.store.alter_topic("t", {"cleanup.policy": "compact", "segment.bytes": 1000})
    scene.log.append_batch([b"x" * 300] * 9, keys=[b"k"] * 9, batch_bytes=300)
    with scene.failing("pwrite"), suppress(SegstoreError):
        assert any(done.error for done in scene.store.sweep())


@case
def open_a_second_time(scene: Scene) -> None:
    refused(lambda: segstore.open(scene.path))
    refused(lambda: segstore.open(scene.path / "missing", mode="r"))


# --- reads ----------------------------------------------------------------------------------------


def damage(scene: Scene) -> None:
    with open(scene.path / "t-0" / "00000000000000000000.log", "r+b") as file:
        file.seek(64)
        file.write(b"\xff")


@case
def reads_of_what_is_damaged(scene: Scene) -> None:
    damage(scene)
    for options in ({}, {"isolation_level": "read_committed"}):
        refused(lambda options=options: scene.log.read(0, **options))  # type: ignore[misc]
    refused(lambda: scene.log.read(9))
    refused(lambda: scene.log.offset_for_time(1))


@case
def transfer(scene: Scene) -> None:
    for method in ("sendfile", "splice", "mmap", "read"):
        ours, theirs = os.pipe()
        os.close(ours)
        refused(lambda to=theirs, by=method: scene.log.transfer(to, 0, method=by), SinkClosedError)  # type: ignore[misc]
        os.close(theirs)


@case
def a_package_that_is_missing(scene: Scene) -> None:
    def needed() -> None:
        with Needing("missing-package", "metrics_text"):
            importlib.import_module("missing_package")

    refused(needed, MissingPackageError)


# --- producers ------------------------------------------------------------------------------------


@case
def a_record_that_is_not_written(scene: Scene) -> None:
    with Producer(scene.store, retries=0) as producer, scene.failing("pwrite"):
        future = producer.send("t", b"x", partition=0)
        refused(lambda: future.get(PATIENCE), StorageError)
        refused(lambda: future.get(PATIENCE), StorageError)
        told: list[object] = []
        future.add_errback(told.append)
        assert told


@case
def many_records_that_are_not_written(scene: Scene) -> None:
    with Producer(scene.store, retries=2, retry_backoff_ms=1) as producer, scene.failing("pwrite"):
        futures = [producer.send("t", b"x" * 5000) for _ in range(30)]
        for future in futures:
            refused(lambda one=future: one.get(PATIENCE), StorageError)  # type: ignore[misc]
        producer.flush()


@case
def a_record_whose_time_is_over(scene: Scene) -> None:
    with (
        Producer(scene.store, delivery_timeout_ms=50, linger_ms=0, retry_backoff_ms=1) as producer,
        scene.failing("pwrite"),
    ):
        future = producer.send("t", b"x")
        refused(lambda: future.get(PATIENCE), KafkaTimeoutError)


@case
def a_record_among_others_that_is_refused(scene: Scene) -> None:
    scene.store.alter_topic("t", {"max.message.bytes": 400})
    with Producer(scene.store, linger_ms=60_000) as producer:
        futures = [producer.send("t", b"x" * n, partition=0) for n in (1, 500, 2)]
        producer.flush()
        refused(lambda: futures[1].get(0))


@case
def waiting_too_short(scene: Scene) -> None:
    with Producer(scene.store, retry_backoff_ms=1) as producer:
        with scene.failing("pwrite"):
            future = producer.send("t", b"x")
            refused(lambda: future.get(0.01), KafkaTimeoutError)
            refused(lambda: producer.flush(0.01), KafkaTimeoutError)
        future.get(PATIENCE)


@case
def a_producer_that_is_closed(scene: Scene) -> None:
    producer = Producer(scene.store)
    producer.close()
    for _ in range(2):
        refused(lambda: producer.send("t", b"x"))
    refused(lambda: Producer(scene.store, acks=7))  # type: ignore[arg-type]


@case
def acks_0(scene: Scene) -> None:
    with Producer(scene.store, acks=0) as producer, scene.failing("pwrite"):
        producer.send("t", b"x").get(PATIENCE)


@case
def a_transaction_that_can_not_go_on(scene: Scene) -> None:
    with Producer(scene.store, transactional_id="x", delivery_timeout_ms=50, max_block_ms=50) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with scene.failing("pwrite"):
            future = producer.send("t", b"x")
            refused(lambda: future.get(PATIENCE))
            refused(producer.commit_transaction)
            refused(lambda: producer.send("t", b"y"))
            refused(producer.abort_transaction)
        producer.abort_transaction()
        refused(producer.commit_transaction)


@case
def a_transaction_that_is_fenced(scene: Scene) -> None:
    first, second = (Producer(scene.store, transactional_id="x") for _ in range(2))
    with first, second:
        first.init_transactions()
        first.begin_transaction()
        second.init_transactions()
        future = first.send("t", b"x")
        refused(lambda: future.get(PATIENCE))
        for _ in range(2):
            refused(first.commit_transaction)
            refused(lambda: first.send("t", b"x"))


@case
def asyncio_producer(scene: Scene) -> None:
    async def send() -> None:
        async with AsyncProducer(scene.store, retries=0) as producer:
            with scene.failing("pwrite"):
                for _ in range(3):
                    failed = False
                    try:
                        await producer.send_and_wait("t", b"x")
                    except StorageError:
                        failed = True
                    assert failed

    asyncio.run(send())


# --- consumers ------------------------------------------------------------------------------------


@case
def poll_of_what_is_damaged(scene: Scene) -> None:
    damage(scene)
    with Consumer(scene.store, "t", auto_offset_reset="earliest") as consumer:
        for _ in range(3):
            with suppress(SegstoreError):
                consumer.poll(10)


@case
def a_record_that_can_not_be_deserialized(scene: Scene) -> None:
    def never(data: bytes) -> None:
        raise ValueError("never")

    with Consumer(scene.store, "t", auto_offset_reset="earliest", value_deserializer=never) as consumer:
        for _ in range(2):
            refused(lambda: consumer.poll(PATIENCE * 1000))


@case
def an_offset_that_is_gone(scene: Scene) -> None:
    with Consumer(scene.store, auto_offset_reset="none") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        for _ in range(2):
            refused(lambda: consumer.poll(100))
        consumer.seek(TopicPartition("t", 0), 99)
        for _ in range(2):
            refused(lambda: consumer.poll(100))


@case
def commit(scene: Scene) -> None:
    with Consumer(scene.store, "t", group_id="g", auto_offset_reset="earliest") as consumer:
        while not consumer.poll(100):
            pass
        with scene.failing("pwrite"):
            refused(consumer.commit)
            told: list[object] = []
            assert consumer.commit_async(callback=lambda _, error: told.append(error)).failed()
            consumer.poll(0)


@case
def a_member_that_was_replaced(scene: Scene) -> None:
    options: Any = {"group_id": "g", "group_instance_id": "i", "auto_offset_reset": "earliest"}
    first = Consumer(scene.store, "t", **options)
    first.poll(100)
    with Consumer(scene.store, "t", **options) as second:
        second.poll(100)
        for _ in range(2):
            with suppress(SegstoreError):
                first.poll(100)
            with suppress(SegstoreError):
                first.commit()
        with suppress(SegstoreError):
            first.close()


# --- staging --------------------------------------------------------------------------------------


@case
def staged_records_that_are_refused(scene: Scene) -> None:
    with Stager(scene.path) as stager:
        refused(lambda: stager.append_batch("missing", 0, [b"x"]))
        stager.append_batch("t", 0, [b"x"])
        message = stager.finish()
    with scene.failing("pwrite"), suppress(SegstoreError):
        seal(scene.path, "one", [message], timeout=0.2)
    seal(scene.path, "one", [message])
    refused(lambda: seal(scene.path, "two", [message]))


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("do", CASES.values(), ids=CASES)
def test_no_error_keeps_itself_alive(tmp_path: Path, do: Case) -> None:
    scene = Scene(tmp_path / "store")
    with collected() as found:
        do(scene)
    described = [describe(error) for error in found]
    found.clear()
    with suppress(SegstoreError):
        scene.store.close()
    assert described == []


def describe(error: BaseException) -> str:
    """The error, and which variables of ours in its frames, and in those above, lead to it in three steps."""
    found = set()
    where = error.__traceback__
    frames: list[types.FrameType] = []
    while where is not None:
        frames.append(where.tb_frame)
        where = where.tb_next
    above = frames[0].f_back if frames else None
    while above is not None:
        frames.append(above)
        above = above.f_back
    for frame in frames:
        names = [name for name, value in list(frame.f_locals.items()) if _leads(value, error, 3)]
        if names and frame.f_code.co_filename.startswith(str(PACKAGE)):
            found.add(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}: {names}")
    return f"{error!r}: {sorted(found)}"


def _leads(value: object, error: BaseException, steps: int) -> bool:
    if value is error:
        return True
    if not steps or isinstance(value, (types.FrameType, types.ModuleType, type, types.TracebackType)):
        return False
    return any(
        _leads(one, error, steps - 1)
        for one in gc.get_referents(value)
        if not isinstance(one, (str, bytes, int))
    )


def test_a_copy_is_the_same_error_without_its_traceback() -> None:
    def fail() -> None:
        try:
            raise OSError(errno.ENOSPC, "full", "a file")
        except OSError as error:
            raise StorageError(error.errno, error.strerror, error.filename) from error

    with pytest.raises(StorageError) as caught:
        fail()
    error, copied = caught.value, copy_of(caught.value)
    assert (type(copied), str(copied), copied.errno) == (StorageError, str(error), errno.ENOSPC)
    assert (type(copied.__cause__), str(copied.__cause__)) == (OSError, str(error.__cause__))
    assert copied.__cause__ is not error.__cause__
    assert copied.__traceback__ is copied.__cause__.__traceback__ is None
    assert error.__traceback__ is not None


def test_an_error_that_can_not_be_copied_is_given_as_it_is() -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__("odd")

    odd = Odd(1, 2)
    assert copy_of(odd) is odd


# --- the source -----------------------------------------------------------------------------------

PACKAGE = Path(segstore.__file__).parent


def test_no_source_raises_what_a_variable_keeps() -> None:
    sources = sorted(PACKAGE.rglob("*.py"))
    kept = [(str(p.relative_to(PACKAGE)), *found) for p in sources for found in kept_raises(p.read_text())]
    assert kept == [], "raise copy_of(...) of an error that is kept, or `del` the variable in a finally"
    assert len(sources) > 300


RAISED = {
    "made there": ("raise E(1)", []),
    "caught there": ("try: f()\nexcept E as e: raise e", []),
    "copied": ("raise copy_of(self.error)", []),
    "forgotten": ("def f(e):\n try: raise e\n finally: del e", []),
    "emptied": ("def f(some):\n try: raise some[0]\n finally: some.clear()", []),
    "of what is forgotten": ("def f(it):\n try: raise it.error\n finally: del it", []),
    "a class": ("raise NotImplementedError", []),
    "a parameter": ("def f(e):\n raise e", [(2, "e")]),
    "an attribute": ("raise self.error", [(1, "self.error")]),
    "of a list": ("raise errors[0]", [(1, "errors[0]")]),
    "without its traceback": ("raise self.e.with_traceback(None)", [(1, "self.e.with_traceback(None)")]),
    "in a function within": (
        "def f(e):\n try:\n  def g(): raise e\n finally: del e",
        [(3, "e")],
    ),
    "behind the handler": ("try: f()\nexcept E as e: pass\nraise e", [(3, "e")]),
}


@pytest.mark.parametrize(("source", "found"), RAISED.values(), ids=RAISED)
def test_what_may_be_raised(source: str, found: list[tuple[int, str]]) -> None:
    assert kept_raises(source) == found
