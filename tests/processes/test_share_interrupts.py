"""Ctrl-C within calls of share groups: no record is lost, and nothing hangs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from share_stores import ACCEPT, LOCK_MS, RELEASE, ShareStore
from struck import struck

pytestmark = pytest.mark.kind("interrupts")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("what", ["acquire", "acknowledge", "release", "run out"])
@pytest.mark.parametrize("again", [(), (1,), (2,), (5,)], ids=str)
def test_an_interrupt_anywhere_loses_no_record(tmp_path: Path, what: str, again: tuple[int, ...]) -> None:
    """Whatever Ctrl-C ends: each record is acknowledged by somebody in the end, and no call hangs; nor if a
    second Ctrl-C comes soon after the first one.
    """
    with ShareStore(tmp_path) as group:
        group.begin()
        place = 0
        while True:
            place += 1
            first = group.log.append_batch([b"x"] * 4).start
            calls = {
                "acquire": lambda: None,
                "acknowledge": partial(
                    group.acknowledge, (first, first + 1, ACCEPT), (first + 2, first + 3, RELEASE)
                ),
                "release": lambda: group.share.release("g", "m", [(group.topic_id, 0)]),
                "run out": lambda: group.pass_ms(LOCK_MS),
            }
            if what != "acquire":
                group.runs()
            raised = struck(group.acquire if what == "acquire" else calls[what], place, *again)
            group.pass_ms(2 * LOCK_MS)
            ended: set[int] = set()
            for _ in range(20):
                for begin, last, _ in group.runs(member="n"):
                    ended |= set(range(begin, last + 1))
                    group.ack((begin, last, ACCEPT), member="n")
            assert group.start() == first + 4
            if what != "acknowledge":
                assert ended == set(range(first, first + 4))
            if not raised:
                break
        assert place > 20
