"""Defects that a server is given, to see that a round finds them: each by its name."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from segstore.errors import SegstoreError
from segstore.server.fetching import reading
from segstore.server.handlers import group_offsets
from segstore.storage.log import append_as_leader as appending
from segstore.storage.producers import producer_state, state_manager
from segstore.storage.store.partition_log import PartitionLog


def _changed(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Put `change(original, *args)` in the place of `owner.name`."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *a, **k: change(original, *a, **k))


def _later(append: Any, log: PartitionLog, batch: Any, **terms: Any) -> Any:
    """Each fourth batch is written a while after its acknowledgement."""
    if next(_batches) % 4:
        return append(log, batch, **terms)
    first, kept, count = log.end_offset, bytearray(batch), int.from_bytes(batch[57:61], "big")
    timer = threading.Timer(1.5, lambda: append(log, kept, **terms))
    timer.daemon = True
    timer.start()
    return appending.AppendedBatch(first, -1, log.start_offset, count)


_batches = itertools.count()


def _acknowledge_first() -> None:
    _changed(PartitionLog, "append_as_leader", _later)


def _forget_producers() -> None:
    def load(original: Any, *args: Any, **more: Any) -> Any:
        found = original(*args, **more)
        found.state.expire(1 << 62, 0)
        return found

    _changed(state_manager.Producers, "load", load)


def _judge_no_sequence() -> None:
    state_manager.judge = lambda state, claim, chunks: None  # type: ignore[assignment]


def _read_above_stable() -> None:
    _changed(producer_state.ProducerState, "stable_offset", lambda original, self, start, end: end)


def _tell_no_aborted() -> None:
    def records(original: Any, *args: Any) -> Any:
        data, waits, size = original(*args)
        if data.aborted_transactions:
            data.aborted_transactions = []
        return data, waits, size

    _changed(reading, "_records", records)


def _acknowledge_commits_first() -> None:
    """Each commit of offsets is written a while after its acknowledgement, if its member is still there."""

    def later(commit: Callable[[Any], None], good: Any) -> None:
        def written() -> None:
            with suppress(SegstoreError):
                commit(good)

        timer = threading.Timer(1.5, written)
        timer.daemon = True
        timer.start()

    def apart(original: Any, store: Any, offsets: Any, commit: Any, *more: Any) -> Any:
        return original(store, offsets, lambda good: later(commit, good), *more)

    _changed(group_offsets, "commit_valid", apart)


DEFECTS: dict[str, Callable[[], None]] = {
    "acknowledges before it appends": _acknowledge_first,
    "forgets producers over a restart": _forget_producers,
    "takes each sequence": _judge_no_sequence,
    "reads above the last stable offset": _read_above_stable,
    "tells of no aborted transaction": _tell_no_aborted,
    "acknowledges commits before it writes them": _acknowledge_commits_first,
}


def plant(name: str) -> None:
    """Give this process a defect; "none" gives it none."""
    if name != "none":
        DEFECTS[name]()
