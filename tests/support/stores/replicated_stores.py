"""Replicated stores for tests: directories, disks that fail or hang, writers, and what must be equal."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults import HookedFiles
from paused_tails import paused_tails
from replica_logs import ends
from stores import records
from waiting import until

import segstore
from segstore.files.handle import Handle

QUICK = {
    "broker.heartbeat.interval.ms": 50,
    "broker.session.timeout.ms": 1_500,
    "offsets.topic.num.partitions": 2,
    "replica.fetch.backoff.ms": 10,
    "replica.lag.time.max.ms": 400,
    "transaction.state.log.num.partitions": 2,
}
"""Settings with which failures are noticed soon."""


PATIENT = {"replica_lag_time_max_ms": 60_000, "broker_session_timeout_ms": 60_000}
"""With these a busy machine puts nobody out of an ISR; a directory that fails is still noticed soon."""


class Disks(HookedFiles):
    """Files on several disks. Each call below a directory that is broken fails; below one that hangs it waits
    until that is released.
    """

    def __init__(self) -> None:
        self._broken: dict[str, tuple[int, Collection[str] | None]] = {}
        self._hanging: dict[str, threading.Event] = {}
        self.waiting = 0
        """How many calls have had to wait."""

    def fail(self, directory: Path, code: int = errno.EIO, calls: Collection[str] | None = None) -> None:
        """Let all calls below a directory fail, or some of them."""
        self._broken = {**self._broken, str(directory): (code, calls)}

    def hang(self, directory: Path) -> None:
        """Let all calls below a directory wait."""
        self._hanging = {**self._hanging, str(directory): threading.Event()}

    def mend(self) -> None:
        """Let all calls pass again, those that wait too."""
        self._broken, hanging = {}, self._hanging
        self._hanging = {}
        for event in hanging.values():
            event.set()

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (self._broken or self._hanging):
            return
        for path in _paths(args):
            for directory, event in self._hanging.items():
                if _is_below(path, directory):
                    self.waiting += 1
                    event.wait()
            for directory, (code, calls) in self._broken.items():
                if _is_below(path, directory) and (calls is None or name in calls):
                    raise OSError(code, os.strerror(code), path)


def _paths(args: tuple[Any, ...]) -> Iterator[str]:
    for argument in args:
        if isinstance(argument, Handle):
            yield argument.path
        elif isinstance(argument, str | os.PathLike):
            yield os.fspath(argument)


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


class Directories:
    """The directories `d0`, `d1`, ... of one replicated store, whose ids are these numbers; with a witness
    where that is asked for. `inline`: appends write all replicas by themselves.
    """

    def __init__(self, base: Path, count: int = 3, witness: bool = False, inline: bool = False) -> None:
        self.inline = inline
        self.base, self.paths = base, [base / f"d{number}" for number in range(count)]
        self.witness = base / "witness" if witness else None
        self.files = Disks()
        self.gone: set[int] = set()
        """Directories that will not come back."""
        self.judged = True
        """Whether, when the test is over, all replicas must become equal."""
        self.config: dict[str, Any] = dict(QUICK)
        self._opened: list[Any] = []

    def open(self, *, adopt: bool = False, **config: Any) -> Any:
        """Open the store with settings, whose names have underscores here."""
        self.config |= {name.replace("_", "."): value for name, value in config.items()}
        store = segstore.open_replicated(
            self.paths,
            witness=self.witness,
            adopt=adopt,
            config=self.config,
            files=self.files,
            inline=self.inline,
        )
        self._opened.append(store)
        return store

    def lose(self, number: int) -> None:
        """Rename a directory away, as an unmounted disk is."""
        os.rename(self.paths[number], self.base / f"lost-{number}")

    def remove(self, number: int) -> None:
        """Remove a directory for ever."""
        os.rename(self.paths[number], self.base / "removed")
        shutil.rmtree(self.base / "removed", ignore_errors=True)
        self.gone.add(number)

    def bring_back(self) -> None:
        """Rename all directories back, and mend all disks."""
        self.files.mend()
        for number, path in enumerate(self.paths):
            if (lost := self.base / f"lost-{number}").exists():
                os.rename(lost, path)

    def close(self) -> None:
        """Close all stores that the test has opened."""
        self.files.mend()
        while self._opened:
            with suppress(segstore.SegstoreError, OSError):
                self._opened.pop().close()

    def judge(self) -> None:
        """Open the store with all directories; once all are in sync each is sound, and replicas are equal."""
        self.close()
        self.bring_back()
        if not any(path.exists() for path in self.paths):
            return
        with segstore.open_replicated(self.paths, witness=self.witness, config=self.config) as store:
            await_in_sync(store, self.gone)
            topics = store.topics()
            replicas = {key: state.replicas for key, state in states(store).items()}
        for number, path in enumerate(self.paths):
            if number not in self.gone:
                assert [str(finding) for finding in segstore.check(path)] == [], path
        for (topic, partition), ids in replicas.items():
            if "compact" in topics[topic].config.get("cleanup.policy", ""):
                continue  # each replica compacts for itself (R34)
            here = [self.paths[each] / f"{topic}-{partition}" for each in ids if each not in self.gone]
            assert_equal(here)


def states(store: Any) -> dict[tuple[str, int], Any]:
    """The state of each partition."""
    return {
        (info.name, number): store.describe_partition(info.name, number)
        for info in store.topics().values()
        for number in info.partition_ids
    }


def all_in_sync(store: Any, gone: Collection[int] = ()) -> bool:
    """Whether in each partition all replicas are in the ISR, and their logs end at one offset."""
    for state in states(store).values():
        expected = {*state.replicas} - {*gone}
        ends = {each.log_end_offset for each in state.replica_states if each.id in expected}
        if {*state.isr} != expected or len(ends) != 1 or state.leader < 0:
            return False
    return True


def await_in_sync(store: Any, gone: Collection[int] = (), seconds: float = 60) -> None:
    """P9: once faults have ended, all replicas come to be in sync."""
    end = time.monotonic() + seconds
    while not all_in_sync(store, gone):
        told = [(key, state) for key, state in states(store).items() if {*state.isr} != {*state.replicas}]
        assert time.monotonic() < end, f"they are not in sync: {told or states(store)}"
        time.sleep(0.01)


def log_bytes(directory: Path) -> bytes:
    """The bytes of a replica's log."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def assert_equal(replicas: list[Path]) -> None:
    """R1, R2: the replicas of a partition hold the same bytes, and the same leader epochs."""
    first, *others = replicas
    for other in others:
        assert log_bytes(other) == log_bytes(first), (first, other)
        assert epochs_of(other) == epochs_of(first), (first, other)


def epochs_of(directory: Path) -> list[tuple[int, int]]:
    """The leader epochs of a replica's batches, with their start offsets. A leader has one more as long as it
    has written nothing.
    """
    found = ends(log_bytes(directory))
    lines = (directory / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    pairs = [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines)]
    return [(epoch, start) for epoch, start in pairs if found and start < found[-1]]


def found(log: Any) -> dict[int, bytes | None]:
    """What a consumer can read, by offset."""
    return {record.offset: record.value for record in records(log)}


def follower_of(state: Any) -> int:
    """A replica that does not lead."""
    return int(next(replica for replica in state.replicas if replica != state.leader))


def retrying(call: Callable[[], Any], seconds: float = 60) -> Any:
    """Call until it succeeds, as an application does while a leader is elected."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except (segstore.SegstoreError, OSError):
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def append_alone(three: Directories, store: Any, log: Any, count: int) -> None:
    """Replica 1 hangs, and 0 takes records alone, which consumers see. Nothing is handed over: a write that
    hangs would be in the log of 1 once its disk answers.
    """
    with paused_tails():
        with log.partition_for_write().tail.token:
            """The tail is taken back."""
        three.files.hang(three.paths[1])
        until(lambda: store.describe_partition("t", 0).isr == (0,))
        for number in range(count):
            log.append(b"lost %d" % number, timeout_ms=60_000)


def lack(directories: Directories, store: Any, leader: Any, code: int, values: Sequence[bytes]) -> None:
    """A follower's disk refuses an append to "t", of which all tails are lent. With min.insync.replicas=3
    nobody else may acknowledge it either; where there is room again, the follower fetches it.
    """
    log, before = store.partition("t"), store.partition("t").end_offset
    broken = follower_of(store.describe_partition("t"))
    directories.files.fail(directories.paths[broken] / "t-0", code, {"pwrite", "pwritev"})
    append = partial(log.append, values[0]) if len(values) == 1 else partial(log.append_batch, values)
    with pytest.raises(segstore.SegstoreError):
        append(timeout_ms=300)
    assert log.end_offset == before
    assert leader.replica.log_end_offset == before + len(values)
    directories.files.mend()
    if code == errno.ENOSPC:
        until(lambda: log.end_offset == before + len(values))
        assert found(log)[before] == values[0]
    else:
        until(lambda: store.describe_partition("t").offline)


def elect_the_other(three: Directories, store: Any) -> None:
    """0 is lost, and 1 made leader without what 0 has taken alone."""
    three.files.fail(three.paths[0])
    three.files._hanging[str(three.paths[1])].set()
    three.files._hanging = {}
    until(lambda: store.describe_partition("t", 0).leader != 0)
    assert store.elect_leaders("unclean", [("t", 0)], confirm=True) == {("t", 0): None}


class Writer:
    """A thread that appends one record after the other, and notes what it was told. It never appends a value
    twice.
    """

    def __init__(
        self,
        log: Any,
        acks: Any = "all",
        timeout_ms: int = 3_000,
        pause: float = 0.002,
        prefix: bytes = b"acks=",
    ) -> None:
        self._prefix = prefix
        self._log, self._acks, self._timeout_ms, self._pause = log, acks, timeout_ms, pause
        self.acked: dict[int, bytes] = {}
        self.refused: list[tuple[bytes, Exception]] = []
        self.fault: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer {acks}", daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        if kind is not None:  # the thread may wait for a disk that still hangs
            return
        self._thread.join(120)
        assert not self._thread.is_alive(), "an append hangs"
        assert self.fault is None, repr(self.fault)

    def _run(self) -> None:
        count = 0
        while not self._over.is_set():
            value = b"%s%s, %d; " % (self._prefix, str(self._acks).encode(), count) * 2
            count += 1
            try:
                offset = self._log.append(value, acks=self._acks, timeout_ms=self._timeout_ms)
            except (segstore.SegstoreError, OSError) as error:
                self.refused.append((value, error))
            except BaseException as error:
                self.fault = error
                return
            else:
                self.acked[offset] = value
            self._over.wait(self._pause)

    def more(self, count: int = 20) -> None:
        """Wait until so many more records are acknowledged."""
        wanted = len(self.acked) + count
        until(lambda: len(self.acked) >= wanted or self.fault)

    def assert_kept(self, log: Any) -> None:
        """R23, P2, P4: what was acknowledged is there at its offset; nothing is there twice."""
        self.assert_kept_from(log, 0)

    def assert_kept_from(self, log: Any, first: int) -> None:
        """The same, of a log whose first records are not of this writer; they are there too."""
        here = found(log)
        lost = {offset: value for offset, value in self.acked.items() if here.get(offset) != value}
        assert not lost, f"{len(lost)} of {len(self.acked)} acknowledged records are lost: {lost}"
        assert len({*here.values()}) == len(here), "a record is there twice"
        assert sorted(here) == list(range(len(here))), "offsets are missing"


def assert_prefix(seen: Mapping[int, bytes | None], log: Any) -> None:
    """P6: what a consumer has seen is there as it was."""
    here = found(log)
    vanished = {offset: value for offset, value in seen.items() if here.get(offset) != value}
    assert not vanished, f"consumers have seen records that vanished: {vanished}"
