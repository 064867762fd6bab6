"""`LiveSet`: what lives of what was added, whatever other threads do meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from segstore.threads import LiveSet


class Thing:
    """What can be referred to weakly."""


def test_what_is_dropped_is_no_member() -> None:
    members: LiveSet[Thing] = LiveSet()
    kept, dropped = Thing(), Thing()
    members.add(kept)
    members.add(dropped)
    members.add(kept)
    assert sorted(map(id, members.all())) == sorted([id(kept), id(dropped)])
    del dropped
    assert members.all() == [kept]


def test_members_are_added_while_others_look() -> None:
    members: LiveSet[Thing] = LiveSet()
    held: list[list[Thing]] = [[] for _ in range(4)]

    def add(mine: list[Thing]) -> None:
        for _ in range(2000):
            mine.append(Thing())
            members.add(mine[-1])
            members.add(Thing())

    threads = [threading.Thread(target=add, args=(mine,)) for mine in held]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        members.all()
    for thread in threads:
        thread.join()
    assert set(members.all()) == {thing for mine in held for thing in mine}


# --- Worker ------------------------------------------------------------------------------------

ENDING = """
import time
from functools import partial
from segstore.errors import IllegalStateError
from segstore.threads import Worker

class Last:
    def __init__(self, worker, refused):
        self.worker, self.refused = worker, refused

    def __del__(self):
        try:
            self.worker.result()
        except self.refused as error:
            print(error)

worker = Worker("the worker")
worker.start()
worker.do(partial(time.sleep, 1000))
last = Last(worker, IllegalStateError)
"""


@pytest.mark.kind("programs")
def test_a_finalizer_does_not_wait_for_work_of_a_thread_that_the_interpreter_has_stopped() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "the interpreter ends: the worker has stopped within its work\n"
