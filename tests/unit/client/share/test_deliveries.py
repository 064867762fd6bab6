"""Records that wait in memory: in which parts polls get them, and what becomes of errors, of records that
can't be made, and of locks that run out.
"""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from consumers import fill, tp

import segstore
from segstore.client.consumer.records import NO_DESERIALIZERS, Deserializers
from segstore.client.share.deliveries import DeliveredColumns, Deliveries, Made, PendingError, Undelivered

AT = ("id", 0)


def columns(
    store: segstore.Store, first: int, last: int, counts: Any = 1, until: float = math.inf
) -> DeliveredColumns:
    if "t" not in store.topics():
        fill(store)
    records = store.partition("t").read(0)[first : last + 1]
    return DeliveredColumns(tp(), AT, records, counts, until)


def taken(deliveries: Deliveries, most: float = math.inf) -> list[tuple[int, int | None]]:
    """Offset and delivery count of what a poll gets."""
    given, waiting = deliveries.look(most)
    if given:
        deliveries.keep(waiting)
    return [(record.offset, record.delivery_count) for part in given for record in part.records]


def test_parts_come_in_order_and_in_pieces(store: segstore.Store) -> None:
    deliveries = Deliveries(NO_DESERIALIZERS)
    deliveries.add([columns(store, 0, 4, [1, 2, 1, 2, 1]), columns(store, 7, 8, 3)])
    assert taken(deliveries, 2) == [(0, 1), (1, 2)]
    assert taken(deliveries, 4) == [(2, 1), (3, 2), (4, 1), (7, 3)]
    assert taken(deliveries) == [(8, 3)]
    assert taken(deliveries) == []
    assert not deliveries


def test_a_look_changes_nothing_until_it_is_kept(store: segstore.Store) -> None:
    deliveries = Deliveries(NO_DESERIALIZERS)
    deliveries.add([columns(store, 0, 4)])
    first, _ = deliveries.look(3)
    second, waiting = deliveries.look(3)
    assert first == second
    deliveries.keep(waiting)
    assert [offset for offset, _ in taken(deliveries)] == [3, 4]


def test_records_whose_locks_ran_out_are_dropped(store: segstore.Store) -> None:
    deliveries = Deliveries(NO_DESERIALIZERS)
    deliveries.add([columns(store, 0, 2, until=time.monotonic() - 1), columns(store, 3, 4)])
    assert [offset for offset, _ in taken(deliveries)] == [3, 4]
    deliveries.add([columns(store, 0, 2, until=time.monotonic() - 1)])
    assert taken(deliveries) == []
    assert not deliveries


def test_an_error_comes_alone_in_its_turn(store: segstore.Store) -> None:
    deliveries = Deliveries(NO_DESERIALIZERS)
    deliveries.add([columns(store, 0, 1), PendingError(ZeroDivisionError()), columns(store, 2, 2)])
    assert [offset for offset, _ in taken(deliveries)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        taken(deliveries)
    assert [offset for offset, _ in taken(deliveries)] == [2]


def refusing(*offsets: int) -> Deserializers:
    """Make numbers of values, but for those of some offsets."""

    def number(_topic: str, _headers: Any, data: bytes) -> int:
        found = int(data.split(b"-")[1])
        if found in offsets:
            raise ZeroDivisionError(found)
        return found

    return Deserializers(None, number)


BAD: dict[str, tuple[tuple[int, ...], list[list[int] | int]]] = {
    "the first": ((0,), [0, [1, 2, 3, 4]]),
    "in the middle": ((2,), [[0, 1], 2, [3, 4]]),
    "the last": ((4,), [[0, 1, 2, 3], 4]),
    "two in a row": ((1, 2), [[0], 1, 2, [3, 4]]),
    "all": ((0, 1, 2, 3, 4), [0, 1, 2, 3, 4]),
}


@pytest.mark.parametrize(("bad", "expected"), BAD.values(), ids=BAD)
def test_q6_a_record_that_cannot_be_made_comes_alone(
    store: segstore.Store, bad: tuple[int, ...], expected: list[Any]
) -> None:
    deliveries = Deliveries(refusing(*bad))
    deliveries.add([columns(store, 0, 4, [5, 4, 3, 2, 1])])
    found: list[Any] = []
    while deliveries:
        found.append(one_look(deliveries))
    assert found == expected


def one_look(deliveries: Deliveries) -> Any:
    """The offsets that a poll gets, or that of the record for which it raises an error."""
    try:
        return [offset for offset, _ in taken(deliveries)]
    except Undelivered as error:
        return error.error.offset if (error.tp, error.at) == (tp(), AT) else None


def test_what_is_put_back_comes_first(store: segstore.Store) -> None:
    deliveries = Deliveries(NO_DESERIALIZERS)
    deliveries.add([columns(store, 0, 3)])
    given, waiting = deliveries.look(2)
    deliveries.keep(waiting)
    deliveries.put_back([Made(part.tp, part.at, part.records, part.until) for part in given])
    assert deliveries.are_made
    assert [offset for offset, _ in taken(deliveries, 1)] == [0]
    assert [offset for offset, _ in taken(deliveries)] == [1, 2, 3]


def test_all_that_waits_has_offsets(store: segstore.Store) -> None:
    deliveries = Deliveries(NO_DESERIALIZERS)
    given, _ = Deliveries(NO_DESERIALIZERS).look(1)
    assert given == []
    deliveries.add([columns(store, 0, 1), PendingError(ZeroDivisionError()), columns(store, 5, 6)])
    assert [part.offsets() for part in deliveries.parts()] == [[0, 1], [5, 6]]
    deliveries.clear()
    assert not deliveries
