"""`WireHistory`: judges what clients of several libraries were told: see `group_histories`, and here what is
of the wire.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from group_histories import GroupHistory

from .told import ANYWHERE, NOT_IDEMPOTENT


class WireHistory(GroupHistory):
    """Generations are not judged: libraries do not tell them."""

    def _checks(self) -> list[Callable[[], Iterable[str]]]:
        untold = {self._shared, self._zombies, self._fractured}
        return [*(check for check in super()._checks() if check not in untold), self._gone, self._torn]

    def _duplicate(self) -> Iterable[str]:
        """Find values at two offsets, where they were sent with idempotence."""
        every = self.committed
        self.committed = {part: v for part, v in every.items() if part[0] not in NOT_IDEMPOTENT}
        try:
            yield from super()._duplicate()
        finally:
            self.committed = every

    def _gone(self) -> Iterable[str]:
        """Find lost writes of records that were acknowledged without an offset."""
        for send in self.sends:
            is_due = send.offset == ANYWHERE and self.ends.get(send.txn, "committed") == "committed"
            if is_due and send.value not in self.committed[send.part].values():
                yield f"lost write: {send}"

    def _torn(self) -> Iterable[str]:
        """Find torn transactions: of those whose commit was asked for all records must be there, or none;
        of the others none may be there.
        """
        wanted: defaultdict[str, set[str]] = defaultdict(set)
        for send in self.sends:
            if send.txn:
                wanted[send.txn].add(send.value)
        there = {value for values in self.committed.values() for value in values.values()}
        for txn, values in wanted.items():
            found, end = len(values & there), self.ends.get(txn)
            if found and end not in ("asked", "committed"):
                yield f"uncommitted transaction: {txn} ({end}): {found} of {len(values)} records are there"
            elif found not in (0, len(values)) or (end == "committed" and not found):
                yield f"torn transaction: {txn} ({end}): {found} of {len(values)} records are there"
