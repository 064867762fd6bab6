"""A share group whose process is killed at each call that changes anything: the crash points of
acknowledgements, locks and dead letters.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from share_stores import ACCEPT, LOCK_MS, REJECT, RELEASE, ShareStore, filled
from stores import killed_at_each_call
from waiting import until

from segstore.files import Files

pytestmark = pytest.mark.kind("kills")

END, LIMIT = 12, 3
DLQ = {"errors.deadletterqueue.group.enable": "true"}


def prepared(path: Path) -> Path:
    with filled(path, 5, 4, 3) as group:
        group.store.create_topic("dlq.t", 1, DLQ)
        group.alter(errors_deadletterqueue_topic_name="dlq.t", share_delivery_count_limit=LIMIT)
    return path


def works(marks: Path, files: Files, path: Path) -> None:
    """Use the group, and note each answer once it is there."""
    with ShareStore(path, files) as group, marks.open("ab", buffering=0) as answers:

        def ack(first: int, last: int, kind: int) -> None:
            group.ack((first, last, kind))
            answers.write(b"%d %d %d\n" % (first, last, kind))

        assert group.runs() == [(0, 11, 1)]
        ack(0, 1, ACCEPT)
        ack(3, 3, REJECT)
        ack(4, 5, RELEASE)
        until(lambda: not any(each.letters or each.writes for each in group.share._leaders.all()))
        group.pass_ms(LOCK_MS)
        group.runs()
        ack(8, 9, ACCEPT)
        group.log.append_batch([b"more"] * 2)


def answered(marks: Path) -> dict[int, int]:
    """Return the last acknowledgement of each offset that was answered."""
    found: dict[int, int] = {}
    for line in marks.read_text().splitlines() if marks.exists() else []:
        first, last, kind = map(int, line.split())
        found |= dict.fromkeys(range(first, last + 1), kind)
    return found


def letters(group: ShareStore) -> Counter[int]:
    records = list(group.store.partition("dlq.t"))
    return Counter(int(dict(record.headers)["__dlq.errors.offset"] or b"") for record in records)


def test_s7_a_kill_anywhere_loses_no_record_and_repeats_no_accepted_one(tmp_path: Path) -> None:
    state = prepared(tmp_path / "state")
    work = tmp_path / "work"
    work.mkdir()

    def run(files: Files, path: Path) -> None:
        works(path.with_suffix(".marks"), files, path)

    kills = 0
    for nth, path in killed_at_each_call(state, work, run):
        kills, told = nth, answered(path.with_suffix(".marks"))
        granted: dict[int, int] = {}
        with ShareStore(path) as group:
            group.alter(errors_deadletterqueue_topic_name="dlq.t", share_delivery_count_limit=LIMIT)
            end = group.log.end_offset
            while runs := group.runs():
                for first, last, count in runs:
                    granted |= dict.fromkeys(range(first, last + 1), count)
                group.ack(*((first, last, ACCEPT) for first, last, _ in runs))
            until(lambda: group.start() == group.log.end_offset)
            dead = letters(group)
        assert end >= END
        accepted = {n for n, kind in told.items() if kind == ACCEPT}
        rejected = {n for n, kind in told.items() if kind == REJECT}
        assert not accepted & set(granted), "P2"
        assert not rejected & set(granted), "P3"
        assert all(1 <= dead[n] <= 2 for n in rejected), "P3"
        assert set(dead) <= {3}
        assert max(granted.values(), default=0) <= LIMIT + 1, "P4"
        # Those without an answer may have been written: accepted 0-1, 8-9 and rejected 3 only.
        assert set(range(END)) - set(granted) - accepted <= {0, 1, 3, 8, 9}, "P5"
    assert kills > 10
