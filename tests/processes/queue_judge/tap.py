"""Tells the history what a process's share coordinator grants and answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queue_events import Answered, Asked, Granted, Part, Released, TakenBack

from segstore.coordinator.share.share import ShareCoordinator

from .told import Telling, now

At = tuple[str, int]


class Tap:
    """Stands between the coordinator and all who call it."""

    def __init__(self, tell: Telling, life: int) -> None:
        self.tell, self.life = tell, life
        self._calls = itertools.count()
        self._acquire, self._cancel = ShareCoordinator.acquire, ShareCoordinator.cancel
        self._acknowledge, self._release = ShareCoordinator.acknowledge, ShareCoordinator.release
        self._names: dict[str, str] = {}

    def install(self) -> None:
        """Be called in the place of the coordinator's methods, for the rest of this process."""
        tap = self

        def acquire(self: Any, group: str, member: str, wanted: Sequence[At], *terms: Any) -> Any:
            return tap.acquire(self, group, member, wanted, *terms)

        def cancel(self: Any, acquisition: Any) -> None:
            tap.cancel(self, acquisition)

        def acknowledge(self: Any, group: str, member: str, batches: Mapping[At, Any]) -> Any:
            return tap.acknowledge(self, group, member, batches)

        def release(self: Any, group: str, member: str, partitions: Iterable[At]) -> None:
            tap.release(self, group, member, partitions)

        for method in (acquire, cancel, acknowledge, release):
            setattr(ShareCoordinator, method.__name__, method)

    def acquire(self, share: Any, group: str, member: str, wanted: Sequence[At], *terms: Any) -> Any:
        lock_ms, began = share.lock_timeout_ms(group), now()
        found = self._acquire(share, group, member, wanted, *terms)
        ended = now()
        for each in found:
            if each.error is None:
                self._names[each.topic_id] = each.topic
                part = each.topic, each.partition
                runs = [tuple(map(int, run)) for run in each.acquired]
                self.tell(Granted(self.life, member, part, runs, each.token, began, ended, lock_ms))  # type: ignore[arg-type]
        return found

    def cancel(self, share: Any, acquisition: Any) -> None:
        began = now()
        self._cancel(share, acquisition)
        if acquisition.error is None:
            part = acquisition.topic, acquisition.partition
            self.tell(TakenBack(self.life, part, acquisition.token, began, now()))

    def acknowledge(self, share: Any, group: str, member: str, batches: Mapping[At, Any]) -> Any:
        call, began = next(self._calls), now()
        for at, acks in batches.items():
            said = [(first, last, list(map(int, types))) for first, last, types in acks]
            self.tell(Asked(self.life, call, member, self._part(share, at), said, began))
        found = self._acknowledge(share, group, member, batches)
        ended = now()
        for at, error in found.items():
            text = "" if error is None else f"{type(error).__name__}: {error}"
            self.tell(Answered(self.life, call, self._part(share, at), text, ended))
        return found

    def release(self, share: Any, group: str, member: str, partitions: Iterable[At]) -> None:
        places, began = list(partitions), now()
        self._release(share, group, member, places)
        parts = [self._part(share, at) for at in places]
        self.tell(Released(self.life, member, parts, began, now()))

    def _part(self, share: Any, at: At) -> Part:
        if at[0] not in self._names:
            self._names.update({info.topic_id: name for name, info in share._store.topics().items()})
        return self._names[at[0]], at[1]
