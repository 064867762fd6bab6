"""Work of a scan that a few threads do: its order, its errors, and when threads begin and end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from stores import in_child
from waiting import until

from segstore.errors import ForkedError
from segstore.storage.scans import crew
from segstore.storage.scans.crew import in_order

SMALL = 100


class Bad(Exception):
    pass


def scanning() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("segstore-scan")]


def size(task: int) -> int:
    return 10


def test_results_come_in_the_order_of_the_tasks() -> None:
    """The first thread is held up until others have done what they may do ahead."""
    done, held = threading.Semaphore(0), threading.Event()

    def work(task: int) -> int:
        if task == 0:
            assert held.wait(60)
        done.release()
        if task == 1:
            held.set()
        return task * 2

    assert list(in_order(iter(range(50)), work, size, SMALL)) == [task * 2 for task in range(50)]
    until(lambda: not scanning())


@pytest.mark.parametrize("n", [0, 1, 9])
def test_small_work_is_done_by_no_other_thread(n: int) -> None:
    found = list(in_order(iter(range(n)), lambda task: (task, threading.get_ident()), size, SMALL))
    assert found == [(task, threading.get_ident()) for task in range(n)]


@pytest.mark.parametrize("n", [1, 50])
def test_what_has_no_size_needs_no_other_thread(n: int) -> None:
    """It is done before the next task is looked at."""
    done: list[int] = []

    def tasks() -> Iterator[int]:
        for task in range(n):
            assert done == list(range(task))
            yield task

    def work(task: int) -> int:
        done.append(task)
        return threading.get_ident()

    assert set(in_order(tasks(), work, lambda _: 0, SMALL)) == {threading.get_ident()}


def test_what_has_a_size_behind_what_has_none() -> None:
    """Threads begin with the first task with a size that makes the work large."""
    sizes = [0] * 5 + [SMALL] + [0] * 5

    def work(task: int) -> tuple[int, bool]:
        return task, threading.get_ident() == mine

    mine = threading.get_ident()
    found = list(in_order(iter(range(len(sizes))), work, sizes.__getitem__, SMALL))
    assert found == [(task, task < 5) for task in range(len(sizes))]


def test_large_work_is_done_by_other_threads() -> None:
    threads = set(in_order(iter(range(99)), lambda _: threading.get_ident(), size, SMALL))
    assert threading.get_ident() not in threads
    assert 1 <= len(threads) <= crew.MOST_THREADS


@pytest.mark.parametrize("n", [5, 50])
def test_an_error_of_the_work_comes_at_its_place(n: int) -> None:
    def work(task: int) -> int:
        if task == n // 2:
            raise Bad(task)
        return task

    found: list[int] = []
    with pytest.raises(Bad, match=str(n // 2)):
        found.extend(in_order(iter(range(n)), work, size, SMALL))
    assert found == list(range(n // 2))
    until(lambda: not scanning())


@pytest.mark.parametrize("n", [5, 50])
def test_an_error_of_the_tasks_comes_behind_the_work_before(n: int) -> None:
    def tasks() -> Iterator[int]:
        yield from range(n)
        raise Bad(n)

    found: list[int] = []
    with pytest.raises(Bad, match=str(n)):
        found.extend(in_order(tasks(), lambda task: task, size, SMALL))
    assert found == list(range(n))
    until(lambda: not scanning())


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_threads_end_with_an_iterator_that_is(how: str) -> None:
    results = in_order(iter(range(1 << 40)), lambda task: task, size, SMALL)
    assert [next(results) for _ in range(20)] == list(range(20))
    assert scanning()
    if how == "closed":
        results.close()  # type: ignore[attr-defined]
    del results
    until(lambda: not scanning())


def test_little_is_made_ahead() -> None:
    """At most as many results as the window has, and one."""
    begun = []

    def work(task: int) -> int:
        begun.append(task)
        return task

    results = in_order(iter(range(1 << 40)), work, size, SMALL)
    for _ in range(30):
        seen = next(results)
        assert max(begun) <= max(seen, SMALL // 10) + crew.AHEAD * crew.MOST_THREADS
    results.close()  # type: ignore[attr-defined]
    until(lambda: not scanning())


@pytest.mark.kind("kills")
def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    results = in_order(iter(range(1 << 40)), lambda task: task, size, SMALL)
    assert [next(results) for _ in range(20)] == list(range(20))

    def go_on(tell: Callable[[str], None]) -> None:
        signal.alarm(30)
        try:
            next(results)
        except ForkedError as error:
            tell(str(error))

    ended, lines = in_child(go_on)
    assert not ended
    assert len(lines) == 1
    assert f"process {os.getpid()}:" in lines[0]
    assert next(results) == 20
    results.close()  # type: ignore[attr-defined]
    until(lambda: not scanning())
