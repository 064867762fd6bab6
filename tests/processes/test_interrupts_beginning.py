"""Promise: Ctrl-C while something is started or ended leaves nothing behind for which the next call would
wait.
"""

from __future__ import annotations

import random
import sys
import threading
from functools import partial
from pathlib import Path
from types import FrameType

import pytest
from struck import struck
from waiting import PATIENCE, until

import segstore
from segstore.coordinator.alarm import Alarm
from segstore.errors import IllegalStateError
from segstore.storage.log.visibility import Visible
from segstore.storage.meta.published_ends import EndsWriter
from segstore.storage.scheduler import Scheduler
from segstore.storage.store.store import Store
from segstore.storage.store.writer import StoreWriter
from segstore.threads import Background, Latch, Shelter, Worker, holding

PACKAGE = str(Path(segstore.__file__).parent)

# What is raised within a destructor, or a generator that is dropped, is told and passed over.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.kind("interrupts"),
]


@pytest.mark.parametrize("kind", [Store, segstore.Producer])
def test_a_destructor_of_what_was_never_begun(kind: type) -> None:
    """An interrupt may come before the first line of `__init__`."""
    kind.__new__(kind).__del__()


PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_an_open(store_dir: Path, rng: random.Random, part: int) -> None:
    """The directory is the next one's, whatever was begun, and by one or two. Each part goes through all of
    an open with places of its own; together they have one of 13.
    """
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"a")
    place, raised = 0, 1
    while raised:
        place += rng.randint(1, 25 * PARTS)
        places = [place, rng.randint(1, 60)][: rng.randint(1, 2)]
        raised = struck(lambda: segstore.open(store_dir).close(), *places)
        with segstore.open(store_dir) as store:
            assert [record.value for record in store.partition("t").read(0)] == [b"a"], places
    assert place > 300
    assert segstore.check(store_dir) == []


def interrupted_once(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """The next call of it is interrupted before it does anything."""
    was = getattr(owner, name)

    def raising(*_: object, **__: object) -> None:
        patch.setattr(owner, name, was)
        raise KeyboardInterrupt

    patch.setattr(owner, name, raising)


def test_opens_that_ended_before_anything_was_published(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one behind taking the clean marker, the second one in a slot that was claimed: what was told
    in that, all zeros, was believed, and records that had been deleted came back; at a kill there, too.
    """
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 300})
        store.partition("t").append_batch([b"value"] * 40, batch_bytes=1)
        store.partition("t").delete_records(21)
    for owner, name in ((EndsWriter, "begin"), (Visible, "publish")):
        interrupted_once(monkeypatch, owner, name)
        with pytest.raises(KeyboardInterrupt):
            segstore.open(store_dir)
    with segstore.open(store_dir) as store:
        log = store.partition("t")
        assert (log.start_offset, log.end_offset) == (21, 40)


def test_an_open_that_was_interrupted_twice_leaves_no_thread(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one when all has begun, the second one at each place of ending that."""
    segstore.open(store_dir).close()
    known, measured = set(threading.enumerate()), sys.getprofile()
    began, place, seen = StoreWriter._begin, 0, 0

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal seen
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            seen += 1
            if seen == place:
                raise KeyboardInterrupt

    def interrupted(it: StoreWriter, *rest: object) -> None:
        began(it, *rest)
        sys.setprofile(profile)
        raise KeyboardInterrupt

    while seen >= place:
        place, seen = place + 1, 0
        with monkeypatch.context() as patch:
            patch.setattr(StoreWriter, "_begin", interrupted)
            with pytest.raises(KeyboardInterrupt):
                segstore.open(store_dir)
            sys.setprofile(measured)
        until(lambda: not {t for t in threading.enumerate() if t.is_alive()} - known)
        segstore.open(store_dir).close()
    assert place > 10


def test_an_alarm_that_was_interrupted_rings_for_the_next() -> None:
    scheduler, rung = Scheduler(), threading.Event()
    alarm = Alarm(scheduler, lambda: 0.0, rung.set)
    place, raised = 0, 1
    while raised:
        place += 1
        alarm.clear()
        rung.clear()
        raised = struck(partial(alarm.set, 0.0), place)
        alarm.set(0.0)
        assert rung.wait(PATIENCE), place
    assert place > 3
    scheduler.close()


# --- the waits themselves -------------------------------------------------------------------------------


def test_a_latch() -> None:
    latch, other = Latch(), threading.Thread(target=lambda: through.append(latch.wait()))
    through: list[bool] = []
    other.start()
    place, raised = 0, 1
    while raised:
        place += 1
        raised = struck(partial(latch.wait, 0.0), place)
    assert not latch.wait(0)
    assert struck(latch.open, 1)
    latch.open()
    other.join(PATIENCE)
    assert through == [True]
    assert latch.wait()


def test_a_thread_whose_start_was_interrupted() -> None:
    place, raised = 0, 1
    while raised:
        place += 1
        ran: list[int] = []
        thread = Background(partial(ran.append, 1), "of a test")
        raised = struck(thread.start, place)
        thread.join()
        seen = list(ran)
        until(lambda t=thread: not t.is_alive())
        assert ran == seen  # it has run, or never will
    assert place > 3
    assert ran == [1]


def test_a_worker_does_nothing_behind_its_end() -> None:
    done: list[int] = []
    worker = Worker("of a test")
    worker.start()
    worker.do(partial(done.append, 1))
    worker.result()
    place = 1
    while struck(worker.end, place):
        place += 1
    worker.do(partial(done.append, 2))
    worker.end()
    assert done == [1]


def test_a_shelter_goes_on_where_its_caller_was_interrupted() -> None:
    shelter, done = Shelter("of a test"), list[int]()
    place, raised = 0, 1
    while raised:
        place += 1
        raised = struck(lambda place=place: shelter.call(partial(done.append, place)), place)
        shelter.call(partial(done.append, -place))
    assert place > 3
    assert done == sorted(set(done), key=lambda number: (abs(number), -number))  # in order
    assert [number for number in done if number < 0] == [-number for number in range(1, place + 1)]
    with pytest.raises(ZeroDivisionError):
        shelter.call(lambda: 1 / 0)
    place = 1
    while struck(shelter.close, place):
        place += 1
    assert shelter.call(threading.current_thread) is threading.main_thread()
    assert all(thread.name != "of a test" for thread in threading.enumerate())


def test_a_shelter_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: Background) -> None:
        raise IllegalStateError("no more threads")

    shelter = Shelter("of a test")
    monkeypatch.setattr(Background, "start", refused)
    assert shelter.call(threading.current_thread) is threading.main_thread()
    monkeypatch.undo()
    assert shelter.call(threading.current_thread) is not threading.main_thread()
    shelter.close()


def test_many_locks_at_once() -> None:
    locks = [threading.Lock() for _ in range(3000)]
    assert holding(locks, lambda: all(lock.locked() for lock in locks))
    assert not any(lock.locked() for lock in locks)
