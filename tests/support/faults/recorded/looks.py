"""Looks at what a cut has left, before anything is opened to write."""

from __future__ import annotations

from pathlib import Path

from faulty.ledger import Told
from faulty.world import OURS

import segstore
from segstore import names
from segstore.errors import SegstoreError

HINTS = (
    *(f"/{name}" for name in (names.ENDS, names.SWEEPS, names.ADOPTED_COPY)),
    *(names.INDEX, names.TIME_INDEX),
)
"""Hints, and a second copy, which a close or an open has not synced yet: the next open makes them anew."""
INBOX = f"/{names.OURS}/{names.INBOX}/"


def judge_closed(path: Path) -> None:
    """A store that says that it was closed cleanly has nothing to be mended but hints, since nobody looks at
    its files until they are used. What others have staged may wait.
    """
    if (path / names.CLEAN_SHUTDOWN).exists():
        told = [f for f in segstore.check(path) if not f.path.endswith(HINTS) and INBOX not in f.path]
        assert told == [], "closed, and " + "\n".join(map(str, told))


def judge_reader(path: Path, told: Told) -> None:
    """Readers see records that were appended, the durable ones among them, or errors of the package."""
    if not path.exists():
        return
    try:
        store = segstore.open(path, mode="r")
    except SegstoreError:
        return  # the store was only being made
    with store:
        for topic, info in store.topics().items():
            for partition in info.partition_ids if topic not in OURS else ():
                found = _read(store.partition(topic, partition))
                place = topic, partition
                for offset, value in found.items():
                    assert value in told.tried[place], f"{place}: {value!r} at {offset} was never written"
                if topic not in told.compacted and not told.topics[topic][1]:
                    lost = {at for at, r in told.durable[place].items() if found.get(at) != r.value}
                    start = told.starts.get(place, (0, 0))[1]
                    assert not [at for at in lost if at >= start], f"{place}: readers miss {sorted(lost)}"


def _read(log: segstore.PartitionLog) -> dict[int, bytes | None]:
    """Return what can be read, by offset, up to an error."""
    found: dict[int, bytes | None] = {}
    try:
        at = log.start_offset
        while at < log.end_offset:
            records = log.read(at)
            found.update({record.offset: record.value for record in records})
            at = records.next_offset
        _ = log.last_stable_offset
    except SegstoreError:
        """Behind what is durable, a power cut may leave damage, which only who opens to write removes."""
    return found
