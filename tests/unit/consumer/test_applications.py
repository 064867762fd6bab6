"""What applications do to a group beside polling: they close in listeners and signal handlers, create topics
again, delete groups, and use odd names.
"""

from __future__ import annotations

import signal
import statistics
from pathlib import Path
from typing import Any

import pytest
from consumers import append, earliest, fill, replace_waits, tp
from groups import (
    KINDS,
    MAX_POLL_MS,
    SESSION_MS,
    Monotonic,
    Told,
    coordinator,
    member,
    member_ids,
    offsets,
    owned,
    settled,
    take_turns,
)

import segstore
from segstore.coordinator.group.admin import Groups, Reset
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import ConfigError, InvalidGroupIdError, InvalidTypeError, SegstoreError

# --- closing where nobody expects it ------------------------------------------------------------

ENDS = {"close": lambda c: c.close(), "unsubscribe": lambda c: c.unsubscribe()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", ["assigned", "revoked"])
@pytest.mark.parametrize("end", ENDS)
def test_a_listener_may_end_it(store: segstore.Store, end: str, when: str, kind: str) -> None:
    fill(store, partitions=2)
    consumer = member(store, **KINDS[kind])
    consumer.subscribe(["t"], listener=Told(lambda how, _: ENDS[end](consumer) if how == when else None))
    other = member(store, "t", **KINDS[kind])
    for _ in range(4):
        if not consumer._guard.closed:
            consumer.poll(1)
        other.poll()
    settled(store, [other])
    assert owned(other) == {0, 1}
    assert member_ids(store) == [other.group_metadata().member_id]


def test_a_listener_that_polls_is_not_told_of_it(store: segstore.Store) -> None:
    fill(store, partitions=2)
    told = Told(lambda *_: consumer.poll())
    consumer, other = member(store), member(store, "t")
    consumer.subscribe(["t"], listener=told)
    settled(store, [consumer])
    settled(store, [consumer, other])
    assert told.told == [("assigned", {0, 1}), ("revoked", {0, 1}), ("assigned", owned(consumer))]


@pytest.mark.parametrize("end", ENDS)
def test_a_listener_without_a_group_may_end_it(store: segstore.Store, end: str) -> None:
    fill(store)
    told = Told(lambda *_: ENDS[end](consumer))
    consumer = earliest(store)
    consumer.subscribe(["t"], listener=told)
    assert consumer.poll(1) == {}
    assert told.told == [("assigned", {0})]
    if end == "unsubscribe":
        consumer.subscribe(
            ["t"], listener=Told(lambda how, _: ENDS[end](consumer) if how == "revoked" else None)
        )
        assert consumer.poll()
        consumer.close()


def test_a_listener_that_fails_keeps_no_topic_that_is_gone(store: segstore.Store) -> None:
    def fail(how: str, _partitions: object) -> None:
        if how == "revoked":
            raise ValueError(how)

    fill(store)
    consumer = earliest(store)
    consumer.subscribe(["t"], listener=Told(fail))
    assert len(consumer.poll()[tp()]) == 10
    store.delete_topic("t")
    fill(store, records=15)
    consumer._coordination.stale()
    with pytest.raises(ValueError, match="revoked"):
        consumer.poll()
    assert [record.offset for record in take_turns([consumer])] == list(range(15))


BUSY = {
    "commits": {"auto_commit_interval_ms": 0},
    "looks": {"metadata_max_age_ms": 0},
    "looks without a group": {"metadata_max_age_ms": 0, "group_id": None},
}


@pytest.mark.parametrize("name", BUSY)
def test_a_consumer_that_waits_sleeps(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fill(store, records=0)
    consumer, sleeps = member(store, "t", **BUSY[name]), []
    consumer.poll()

    def counted(store: segstore.Store, timeout_ms: float) -> None:
        sleeps.append(timeout_ms)
        if len(sleeps) == 20:
            append(store, 1)

    replace_waits(monkeypatch, counted, then=True)
    assert consumer.poll(1e9)
    assert statistics.median(sleeps) >= 5
    consumer.close()


CONSUMERS = {"alone": earliest, "in a group": member}


@pytest.mark.parametrize("kind", CONSUMERS)
@pytest.mark.parametrize("way", ["iterated", "polled"])
def test_a_signal_handler_that_closes_ends_the_wait(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, way: str, kind: str
) -> None:
    fill(store)
    consumer = CONSUMERS[kind](store, "t")

    def wait(_store: segstore.Store, _timeout_ms: float) -> None:
        if consumer.assignment():
            signal.raise_signal(signal.SIGUSR1)

    replace_waits(monkeypatch, wait)
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())
    try:
        if way == "iterated":
            assert len(list(consumer)) == 10
        else:
            assert sum(map(len, consumer.poll(1e9).values())) == 10
            assert consumer.poll(1e9) == {}
    finally:
        signal.signal(signal.SIGUSR1, before)


# --- topics that are made anew --------------------------------------------------------------------

COMMITS = {
    "close": lambda c: c.close(),
    "unsubscribe": lambda c: c.unsubscribe(),
    "commit": lambda c: c.commit(),
    "commit_async": lambda c: c.commit_async(),
}


@pytest.mark.parametrize("how", COMMITS)
def test_positions_in_a_topic_that_was_deleted_are_not_committed(store: segstore.Store, how: str) -> None:
    fill(store)
    fill(store, "u")
    consumer = member(store, "t", "u")
    assert len(settled(store, [consumer])) == 20
    store.delete_topic("t")
    fill(store, records=15)
    COMMITS[how](consumer)
    assert offsets(store).fetch("g") == {tp(0, "u"): OffsetAndMetadata(10, "", 0)}
    consumer.close(autocommit=False)
    with member(store, "t") as other:
        assert [record.offset for record in settled(store, [other])] == list(range(15))


def test_a_position_is_not_committed_when_a_read_finds_the_topic_gone(store: segstore.Store) -> None:
    """Before the consumer has looked at the topics again."""
    fill(store)
    consumer = member(store, "t")
    settled(store, [consumer])
    consumer._coordination._watch.look = lambda: None
    store.delete_topic("t")
    assert consumer.poll() == {}
    fill(store, records=15)
    consumer.close()
    assert offsets(store).fetch("g") == {}


# --- groups that are forgotten, and nobody who looks ------------------------------------------------


def test_who_was_late_does_not_take_a_new_group_for_its_own(store: segstore.Store) -> None:
    """The new group has seen as many changes as the old one had when the late member looked last."""
    fill(store, partitions=2)
    clock = Monotonic()
    at_work = coordinator(store, clock)
    late = member(store, "t")
    settled(store, [late])
    clock.now += MAX_POLL_MS
    at_work.run_due()
    Groups(store).delete("g")
    new = member(store, "t")
    settled(store, [new])
    late.poll()
    settled(store, [late, new])
    assert sorted([*owned(late), *owned(new)]) == [0, 1]


def test_many_groups_keep_few_alarms(store: segstore.Store) -> None:
    """Each ring of the alarm arms one, however many groups there are and whenever members are due."""
    fill(store)
    clock = Monotonic()
    at_work, armed = coordinator(store, clock), []
    store.context.scheduler.after = lambda seconds, task: armed.append((clock.now + seconds * 1000, task))
    members = [
        member(store, "t", group=f"g{n}", heartbeat_interval_ms=1000 - 10 * n, session_timeout_ms=SESSION_MS)
        for n in range(8)
    ]
    for consumer in members:
        consumer.poll()
    for _ in range(200):
        due, task = min(armed, key=lambda each: each[0])
        armed.remove((due, task))
        clock.now = max(clock.now, due)
        task()
        take_turns(members, 1)
    assert len(armed) <= 2 * len(members)
    assert at_work._groups._alarm.due in {due for due, _ in armed}


def test_a_kept_member_that_never_returns_is_gone_in_time(store_dir: Path) -> None:
    """Of a group that nobody joins or asks for."""
    with segstore.open(store_dir) as store:
        fill(store)
        settled(store, [member(store, "t", group_instance_id="i")])
    with segstore.open(store_dir) as store:
        clock = Monotonic()
        at_work, armed = coordinator(store, clock), []
        store.context.scheduler.after = lambda seconds, task: armed.append(task)
        assert at_work._groups.empty_since("g") is None
        clock.now += SESSION_MS
        for task in tuple(armed):  # they arm others
            task()
        assert at_work._groups.empty_since("g") is not None


def test_a_fenced_member_closes_without_an_error(
    store: segstore.Store, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Kafka: its commit is refused and logged, and its successor keeps the partitions."""
    fill(store)
    fenced = member(store, "t", group_instance_id="i", enable_auto_commit=True)
    settled(store, [fenced])
    successor = member(store, "t", group_instance_id="i")
    settled(store, [successor])
    fenced.close()
    assert "automatic commit of group g failed" in caplog.text
    take_turns([successor])
    assert owned(successor) == {0}


# --- odd names and wrong types ------------------------------------------------------------------------

GROUPS = {
    "of accents": "é",
    "of two units": "😀",
    "of blanks": " ",
    "of a path": "../x",
    "the longest": "x" * 32_767,
}


@pytest.mark.parametrize("name", GROUPS)
def test_any_name_of_a_group_will_do(store: segstore.Store, name: str) -> None:
    fill(store)
    with member(store, "t", group=GROUPS[name]) as consumer:
        assert len(settled(store, [consumer], GROUPS[name])) == 10
    assert Groups(store).lag(GROUPS[name]) == {tp(): 0}


REFUSED: dict[str, tuple[dict[str, str], type[SegstoreError]]] = {
    "a group beyond the longest": ({"group": "x" * 32_768}, InvalidGroupIdError),
    "a group that is no UTF-8": ({"group": "\ud800"}, InvalidGroupIdError),
    "a client_id beyond the longest": ({"client_id": "é" * 16_001}, ConfigError),
    "a client_id that is no UTF-8": ({"client_id": "\ud800"}, ConfigError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_written_is_refused_at_once(store: segstore.Store, name: str) -> None:
    settings, error = REFUSED[name]
    with pytest.raises(error):
        member(store, **settings)


WRONG: dict[str, tuple[Any, str]] = {
    "a record to commit": (lambda c, r: c.commit({tp(): r}), "OffsetAndMetadata, not ConsumerRecord"),
    "one number to assign": (lambda c, r: c.assign(5), "list of TopicPartition, not int"),
    "nothing to assign": (lambda c, r: c.assign(None), "list of TopicPartition, not NoneType"),
    "ends of nothing": (lambda c, r: c.end_offsets(None), "list of TopicPartition, not NoneType"),
    "starts of one": (lambda c, r: c.beginning_offsets(0), "list of TopicPartition, not int"),
    "times of a list": (lambda c, r: c.offsets_for_times([tp()]), "timestamps must be a dict, not list"),
    "partitions of many": (lambda c, r: c.partitions_for_topic(["t"]), "topic must be a str, not list"),
    "a partition in words": (
        lambda c, r: c.position(TopicPartition("t", "0")),
        "partition must be an int, not",
    ),
    "a topic in numbers": (lambda c, r: c.committed(TopicPartition(5, 0)), "topic must be a str, not int"),
}


class Forgetful:
    """Its on_consume has no return."""

    def on_consume(self, records: Any) -> None:
        for each in records.values():
            each.clear()
        records.clear()


def test_an_interceptor_that_returns_nothing_fails(
    store: segstore.Store, caplog: pytest.LogCaptureFixture
) -> None:
    fill(store)
    with member(store, "t", interceptors=[Forgetful()], consumer_timeout_ms=0) as consumer:
        assert consumer.poll() == {}
        assert list(consumer) == []
    assert "on_consume must return a dict of records, not NoneType" in caplog.text


@pytest.mark.parametrize("which", [5, [5], [("t",)], [("t", "0")]])
def test_what_is_no_partition_is_not_reset(store: segstore.Store, which: Any) -> None:
    fill(store)
    with pytest.raises(InvalidTypeError):
        Groups(store).reset("g", Reset.to_earliest(), which)
    with member(store, "t") as consumer:
        settled(store, [consumer])
    with pytest.raises(InvalidTypeError):
        Groups(store).delete_offsets("g", which)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_named(store: segstore.Store, name: str) -> None:
    fill(store)
    with member(store, "t") as consumer:
        (record, *_) = settled(store, [consumer])
        use, message = WRONG[name]
        with pytest.raises(InvalidTypeError, match=message):
            use(consumer, record)
        append(store, 1)
        assert [each.offset for each in take_turns([consumer])] == [10]
