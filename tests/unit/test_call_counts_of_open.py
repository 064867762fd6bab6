"""Promise: an open of a store after a crash makes a bounded number of calls of Python functions.

A call costs more than most of what is done within it: the bound keeps an open short, and its way through the
code easy to follow. Comprehensions count as calls before Python 3.12.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from faults import CountingFiles
from python_calls import calls_of
from stores import killed

import segstore

MOST = 979
RECORDS = 100
SHOWN = 25


def crashed(path: Path) -> Path:
    """A store of one topic with one partition, as a kill would leave it: a copy of an open one."""
    with segstore.open(path.with_name(f"{path.name}.open")) as store:
        store.create_topic("t", 1)
        log = store.partition("t", 0)
        for _ in range(RECORDS):
            log.append(b"x")
        return killed(Path(store.path), path)


def test_an_open_after_a_crash(tmp_path: Path, store_dir: Path) -> None:
    with segstore.open(crashed(tmp_path / "before")):
        """What is imported and cached at the first open is there now."""
    opened: list[segstore.Store] = []
    crashed(store_dir)
    calls = calls_of(lambda: opened.append(segstore.open(store_dir)))
    with opened.pop() as store:
        assert [done.end_offset for done in store.recovered] == [RECORDS]
        assert store.partition("t", 0).end_offset == RECORDS
    heaviest = "\n".join(f"{n:5} {name}" for name, n in calls.most_common(SHOWN))
    assert calls.total() <= MOST, f"{calls.total()} calls, {MOST} are allowed. The heaviest:\n{heaviest}"


def test_no_file_is_read_twice(store_dir: Path) -> None:
    """What was read of a small file is handed on to whoever needs it."""
    files = CountingFiles()
    with segstore.open(crashed(store_dir), files=files):
        whole = [str(args[0]) for name, args in files.calls if name == "read_file"]
    read = Counter(str(Path(path).relative_to(store_dir)) for path in whole)
    assert set(read.values()) == {1}, read
    assert {".segstore/topics/t.json", ".segstore/topics/t.copy", "t-0/partition.metadata"} <= set(read)
