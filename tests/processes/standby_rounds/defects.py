"""Defects that both sides are given, to see that rounds find them: each by its name."""

from __future__ import annotations

from collections.abc import Callable

from segstore.storage.log import replica
from segstore.storage.log.standby_acks import StandbyAcks
from segstore.storage.store.primary import Primary


def _promote_under_the_old_epoch() -> None:
    replica.Replica.begin_epoch = lambda self, epoch: None  # type: ignore[method-assign]


def _write_though_demoted() -> None:
    Primary._close_to_appends = lambda self, partition: None  # type: ignore[method-assign]


def _acknowledge_first() -> None:
    StandbyAcks.wait = lambda self, end_offset, acks, timeout_ms: None  # type: ignore[method-assign]


def _cut_without_a_copy() -> None:
    replica.keep_batches = lambda *place: None  # type: ignore[assignment]


DEFECTS: dict[str, Callable[[], None]] = {
    "promotes under the old leader epoch": _promote_under_the_old_epoch,
    "takes appends though it was demoted": _write_though_demoted,
    "acknowledges before the standby has it": _acknowledge_first,
    "cuts without a copy": _cut_without_a_copy,
}


def plant(name: str) -> None:
    """Give this process a defect; "none" gives it none."""
    if name != "none":
        DEFECTS[name]()
