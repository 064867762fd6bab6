"""Share groups over real stores: acquire and acknowledge (Q16 to Q40)."""

from __future__ import annotations

from pathlib import Path

from share_stores import ACCEPT, REJECT, RELEASE, RENEW, ShareStore


def filled(path: Path, *sizes: int, **config: object) -> ShareStore:
    """Return a store with record batches of these sizes, and a group that reads them from the start."""
    store = ShareStore(path, **config)  # type: ignore[arg-type]
    for size in sizes:
        store.log.append_batch([b"%d" % n for n in range(size)])
    store.begin()
    return store


def test_records_are_acquired_once_and_acknowledged_for_good(store_dir: Path) -> None:
    with filled(store_dir, 10) as group:
        found = group.acquire()
        assert found is not None
        assert found.acquired == ((0, 9, 1),)
        assert [record.value for part in found.reads() for record in part] == [b"%d" % n for n in range(10)]
        assert group.acquire() is None
        group.ack((0, 2, ACCEPT), (3, 5, RELEASE), (6, 7, REJECT), (8, 9, RENEW))
        assert group.durable() == (0, [(0, 2, 2, 1), (3, 5, 0, 1), (6, 7, 4, 1)])
        assert group.start() == 3
        assert group.runs(member="n") == [(3, 5, 2)]
        group.ack((8, 9, ACCEPT))
        group.ack((3, 5, ACCEPT), member="n")
        assert group.start() == 10
    with ShareStore(store_dir) as group:
        assert group.runs() == []
        group.log.append(b"more")
        assert group.runs() == [(10, 10, 1)]
