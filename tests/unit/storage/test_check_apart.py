"""Segments that are checked one by one, in other processes, give the findings of `check`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from producers import send
from stores import write_topic

import segstore
from segstore.errors import StorageError
from segstore.storage.check.by_segment import SegmentToCheck, check_part, check_rest, parts
from segstore.storage.check.segment import SegmentCheck
from segstore.storage.log.transaction_markers import end_transaction

SMALL = {"segment.bytes": 400, "index.interval.bytes": 100}


def apart(path: Path) -> list[segstore.Finding]:
    """As on a cluster: parts and what is found of them travel."""
    checked = [
        pickle.loads(pickle.dumps(check_part(pickle.loads(pickle.dumps(part))))) for part in parts(path)
    ]
    return check_rest(path, {each.part: each for each in checked if each is not None})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Topic "t" of many segments, "txn" with an aborted transaction."""
    with write_topic(tmp_path / "s", [[b"%d" % i * 20] * 5 for i in range(12)], SMALL, close=False) as store:
        log = store.partition(store.create_topic("txn", config=SMALL).name)
        for i in range(6):
            send(log, 1, 3 * i, n=3, txn=True)
            end_transaction([log], 1, 0, 0, commit=i % 2 == 0)
    return tmp_path / "s"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "nothing": lambda path: None,
    "a batch": lambda path: flip(sorted(path.glob("t-0/*.log"))[2]),
    "an index": lambda path: flip(max(path.glob("t-0/*.timeindex"), key=lambda p: p.stat().st_size)),
    "an index is gone": lambda path: sorted(path.glob("t-0/*.index"))[1].unlink(),
    "a segment is gone": lambda path: sorted(path.glob("t-0/*.log"))[3].unlink(),
    "a transaction index": lambda path: flip(
        next(p for p in sorted(path.glob("txn-0/*.txnindex")) if p.stat().st_size)
    ),
    "the epochs": lambda path: (path / "t-0" / "leader-epoch-checkpoint").write_text("nonsense"),
    "the ends": lambda path: (path / ".segstore" / "ends").write_bytes(b"x" * 200),
    "settings": lambda path: (path / ".segstore" / "topics" / "t.json").write_text("{}"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_the_same_is_found(case: str, path: Path) -> None:
    DAMAGE[case](path)
    expected = list(segstore.check(path))
    assert apart(path) == expected
    assert bool(expected) == (case != "nothing")


def test_each_segment_is_looked_at_once_and_not_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = parts(path)
    assert len({(part.directory, part.base_offset) for part in every}) == len(every) > 10
    checked = {part: found for part in every if (found := check_part(part)) is not None}
    monkeypatch.setattr(SegmentCheck, "run", lambda one: pytest.fail(f"{one.segment.path} is checked again"))
    seen: list[int] = []
    assert check_rest(path, checked, seen.append) == []
    assert sum(seen) == sum(part.end for part in every)


def test_a_store_that_is_written_meanwhile(store_dir: Path) -> None:
    with write_topic(store_dir, [[b"v" * 100] * 5 for _ in range(12)], SMALL, close=False) as store:
        log, every = store.partition("t"), parts(store_dir)
        assert every[-1].active
        assert not every[0].at_rest
        log.append_batch([b"w" * 100] * 20, batch_bytes=200)
        log.delete_records(30)
        store.sweep()
        checked = [found for part in every if (found := check_part(part)) is not None]
        assert check_rest(store_dir, {each.part: each for each in checked}) == []
        # What is found of a store in use is looked at again before it is told.
        wrong = {
            each.part: each._replace(findings=(segstore.Finding("x", None, None, "wrong"),))
            for each in checked
        }
        assert check_rest(store_dir, wrong) == []
        gone = SegmentToCheck(str(store_dir / "t-0"), 10**6, 5, True, 100, 5, 10**7, False, False, 0)
        assert check_part(gone) is None


def test_no_store(tmp_path: Path) -> None:
    for run in (parts, lambda path: check_rest(path, {})):
        with pytest.raises(StorageError, match="No such store"):
            run(tmp_path / "none")
