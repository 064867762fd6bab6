"""A member of a store in a storm: appends to it until it is told to stop, or killed. As a host it also makes
transactions.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import segstore
from segstore import errors
from segstore.files import Files
from segstore.index import sparse

from .notes import (
    ABORTED,
    COMMITTED,
    HOSTS,
    ID,
    MOST,
    NOT_THERE,
    REFUSED,
    SLOT,
    TXN_BEGUN,
    Notes,
    value_of,
)
from .plan import Chances, Plan

TOPIC, TXN_TOPIC = "t", "x"
CHANGING = ("open", "map", "truncate", "allocate", "rename", "unlink", "sync_dir", "lock")
"""Calls of `Files` at which a member pauses, dies or stops, before and behind."""
PYTHON_S = 8
REFUSALS = (errors.HostUnavailableError,)
_PR_SET_PDEATHSIG = 1


class StormFiles(Files):
    """Files with steps at each call that changes what others see, and at opens. C still writes by itself."""

    step: Callable[[], None]


def _stepping(name: str) -> Any:
    original = getattr(Files, name)

    def call(self: StormFiles, *args: Any, **kwargs: Any) -> Any:
        self.step()
        result = original(self, *args, **kwargs)
        self.step()
        return result

    return call


for _name in CHANGING:
    setattr(StormFiles, _name, _stepping(_name))


def step_of(chances: Chances, rng: random.Random) -> Callable[[], None]:
    """Return what a member does at a step of Python's: an open has so many that it dies there less often."""
    die, stop = min(chances.die, 0.006) / PYTHON_S, chances.stop / PYTHON_S

    def step() -> None:
        drawn = rng.random()
        if drawn < die:
            os.kill(os.getpid(), signal.SIGKILL)
        elif drawn < die + stop:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif drawn < die + stop + chances.pause / PYTHON_S:
            time.sleep(rng.random() * chances.us / 1e6)

    return step


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(root: Path, number: int, plan: Plan, chances: Chances, stop: Callable[[], bool]) -> int:
    """Be the member; returns the status with which to exit."""
    work = root.parent
    with open(work / "errors", "a") as said:
        faulthandler.enable(said)
        faulthandler.register(signal.SIGUSR1, said, all_threads=True)
        os.dup2(said.fileno(), 2)
        try:
            _Member(root, number, plan, chances, stop).run()
            return 0
        except (errors.HostUnavailableError, errors.StoreLockedError):
            return 0  # nobody was there, or too many came at once
        except BaseException:
            said.write(f"member {number} at {time.time()}: {traceback.format_exc()}\n")
            return 3
        finally:
            said.flush()
            sys.stderr.flush()


class _Member:
    def __init__(
        self, root: Path, number: int, plan: Plan, chances: Chances, stop: Callable[[], bool]
    ) -> None:
        self.root, self.number, self.plan, self.stop = root, number, plan, stop
        self.rng = random.Random(chances.seed)
        chances.into_environment(root.parent / "counts", plan)
        sparse.GROWTH = plan.index_room
        self.files = StormFiles()
        self.files.step = step_of(chances, random.Random(chances.seed + 1))
        self.notes = Notes(root.parent / "notes" / str(number))
        self.notes[ID] = number
        self.was_host = False

    def run(self) -> None:
        shared: Any = "guest" if self.rng.random() < self.plan.guests else True
        store = segstore.open(
            self.root, shared=shared, config=self.plan.store_config, files=self.files, timeout=20
        )
        member = next(each for each in store.members() if each.pid == os.getpid())
        self.notes[SLOT] = member.slot + 1
        try:
            log = store.partition(TOPIC, 0)
            for number in range(1, MOST):
                if self.stop():
                    break
                self.append(log, number)
                if store.role == "host":
                    self.as_host(store, number)
        finally:
            store.close()

    def append(self, log: Any, number: int) -> None:
        """Make one append, and note it."""
        rng, parts = self.rng, self.rng.choice([1, 1, 2, 3])
        room = (lambda: 20) if self.plan.one_size else (lambda: rng.randrange(300))
        values = [value_of(self.number, number, i, parts, room()) for i in range(parts)]
        self.notes.begin(number)
        try:
            if parts == 1 and rng.random() < 0.7:
                first = log.append(values[0])
            else:
                first = log.append_batch(values, batch_bytes=rng.choice([1, 65536])).start
        except REFUSALS:
            self.notes[REFUSED] += 1
            self.notes.end(number, NOT_THERE)
            return
        self.notes.end(number, first + 1)  # whatever becomes of the flush
        if rng.random() < self.plan.durable:
            with suppress(*REFUSALS):
                log.flush()

    def as_host(self, store: Any, number: int) -> None:
        """Make a transaction over two partitions, now and then."""
        if not self.was_host:
            self.was_host = True
            self.notes[HOSTS] = 1
        if self.rng.random() >= self.plan.transactions:
            return
        txn, parts = self.notes[TXN_BEGUN] + 1, self.rng.randint(2, 5)
        self.notes[TXN_BEGUN] = txn
        with segstore.Producer(store, transactional_id=f"m{self.number}", linger_ms=60_000) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for part in range(parts):
                producer.send(TXN_TOPIC, value_of(self.number, txn, part, parts, 20), partition=part % 2)
            if self.rng.random() < 0.7:
                producer.commit_transaction()
                self.notes.end_txn(txn, COMMITTED)
            else:
                producer.abort_transaction()
                self.notes.end_txn(txn, ABORTED)
