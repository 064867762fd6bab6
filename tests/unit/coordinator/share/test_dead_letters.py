"""Dead letter queues over real stores (Q62, Q66 to Q72; S6), and the crash points of dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from share_stores import ACCEPT, GAP, REJECT, RELEASE, ShareStore, filled
from stores import killed
from waiting import told, until

import segstore
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.share import dead_letters

ENABLED = {"errors.deadletterqueue.group.enable": "true"}
Letter = dict[str, str | bytes | None]


def with_queue(
    path: Path, *sizes: int, topic: str = "dlq.t", partitions: int = 1, **config: Any
) -> ShareStore:
    """Return a store whose group has a dead letter topic that exists."""
    group = filled(path, *sizes, **config)
    if topic not in group.store.topics():
        group.store.create_topic(topic, partitions, ENABLED)
    group.alter(errors_deadletterqueue_topic_name=topic)
    return group


def letters(store: segstore.Store, topic: str = "dlq.t", partition: int = 0) -> list[Letter]:
    return [
        {
            "key": record.key,
            "value": record.value,
            **{name.removeprefix("__dlq.errors."): (text or b"").decode() for name, text in record.headers},
        }
        for record in store.partition(topic, partition)
    ]


def settled(group: ShareStore) -> None:
    """Wait until no share partition has dead letters to be copied, and the start has passed them."""
    leader = group.share._leaders.get("g", group.topic_id, 0)
    assert leader is not None
    until(lambda: not leader.letters and not leader.writes)
    until(lambda: all(run.state != 3 for run in leader.core.runs()))


def letter(offset: int, count: int = 1, message: str = "Offset rejected by client.", **more: Any) -> Letter:
    return {
        "key": None,
        "value": None,
        "topic": "t",
        "partition": "0",
        "offset": str(offset),
        "group": "g",
        "delivery.count": str(count),
        "message": message,
        **more,
    }


def test_q68_rejected_records_have_headers_alone(store_dir: Path) -> None:
    with with_queue(store_dir, 6) as group:
        group.runs()
        group.ack((0, 1, ACCEPT), (2, 4, REJECT), (5, 5, GAP))
        settled(group)
        assert letters(group.store) == [letter(2), letter(3), letter(4)]
        log = group.store.partition("dlq.t")
        assert len(log.read(0).batches) == 1  # one batch for neighbours
        assert [name for name, _ in next(iter(log)).headers] == [
            "__dlq.errors.topic",
            "__dlq.errors.partition",
            "__dlq.errors.offset",
            "__dlq.errors.group",
            "__dlq.errors.delivery.count",
            "__dlq.errors.message",
        ]
        assert next(iter(log)).timestamp == group.clock.now
        assert group.start() == 6
        found = group.store.metrics()["group=g"]
        assert found == {
            "DeadLetterQueueRecordCount": 3,
            "DeadLetterQueueTotalProduceRequestsPerSec": 1,
            "DeadLetterQueueFailedProduceRequestsPerSec": 0,
        }


def test_q68_the_state_is_archiving_before_and_archived_after(store_dir: Path) -> None:
    with with_queue(store_dir, 3) as group:
        group.runs()
        states = group.store.partition("__share_group_state")
        before = states.end_offset
        group.ack((0, 1, REJECT))
        settled(group)
        from segstore.coordinator.share.state_schema import parse_update

        updates = [parse_update(record.value or b"") for record in states.scan(before)]
        assert [[tuple(batch) for batch in each.batches] for each in updates] == [
            [(0, 1, 3, 1)],
            [(0, 1, 4, 1)],
        ]
        assert [each.complete for each in updates] == [0, 2]


def test_s6_the_limit_makes_dead_letters_with_their_count(store_dir: Path) -> None:
    with with_queue(store_dir, 2) as group:
        group.alter(share_delivery_count_limit=2)
        group.runs()
        group.ack((0, 1, RELEASE))
        group.runs()
        group.pass_ms(30_000)
        settled(group)
        message = "Offset delivery count exceeded the threshold."
        assert letters(group.store) == [letter(n, 2, message) for n in (0, 1)]
        assert group.runs() == []


def test_q69_copies_have_key_and_value_and_no_headers_of_the_record(store_dir: Path) -> None:
    with with_queue(store_dir) as group:
        group.alter(errors_deadletterqueue_copy_record_enable=True)
        group.log.append(b"value", b"key", [("own", b"header")])
        group.log.append(None, b"tombstone")
        group.log.append(bytes(3000), b"large")
        group.store.alter_topic("dlq.t", {"max.message.bytes": 1500})
        group.runs()
        group.ack((0, 2, REJECT))
        settled(group)
        assert letters(group.store) == [
            letter(0, key=b"key", value=b"value"),
            letter(1, key=b"tombstone"),
            letter(2),
        ]


def test_q69_records_that_are_gone_have_headers_alone(store_dir: Path) -> None:
    with with_queue(store_dir, 2, 2) as group:
        group.alter(errors_deadletterqueue_copy_record_enable=True)
        group.runs()
        with group.share._letters._copying:  # the log's start moves before they are copied
            group.ack((0, 3, REJECT))
            group.log.delete_records(2)
        settled(group)
        values = [each["value"] for each in letters(group.store)]
        assert values == [None, None, b"0", b"1"]


def test_q69_many_records_are_copied_in_batches_that_fit(store_dir: Path) -> None:
    with with_queue(store_dir) as group:
        group.alter(errors_deadletterqueue_copy_record_enable=True)
        group.store.alter_topic("dlq.t", {"max.message.bytes": 20_000})
        for n in range(30):
            group.log.append_batch([b"%d" % n * 1000] * 4)
        while runs := group.runs():
            group.ack(*((first, last, REJECT) for first, last, _ in runs))
        settled(group)
        assert [each["offset"] for each in letters(group.store)] == [str(n) for n in range(120)]
        assert group.start() == 120


def test_q68_the_partition_is_that_of_the_source_modulo(store_dir: Path) -> None:
    with ShareStore(store_dir, partitions=3) as group:
        group.store.create_topic("dlq.t", 2, ENABLED)
        group.alter(errors_deadletterqueue_topic_name="dlq.t")
        group.begin()
        for partition in range(3):
            group.store.partition("t", partition).append(b"x")
            group.runs(partition=partition)
            group.ack((0, 0, REJECT), partition=partition)
        until(lambda: [len(letters(group.store, partition=n)) for n in (0, 1)] == [2, 1])
        assert {each["partition"] for each in letters(group.store, partition=0)} == {"0", "2"}


@pytest.mark.parametrize(
    ("name", "settings", "config", "reason"),
    [
        ("dlq.missing", None, {}, "there is no such topic"),
        ("dlq.t", {}, {}, "group.enable is false"),
        ("other", ENABLED, {}, "must begin with 'dlq.'"),
        ("dlq.bad name", None, {"errors.deadletterqueue.auto.create.topics.enable": True}, "dlq.bad name"),
    ],
)
def test_s6_q67_q70_what_has_no_place_is_archived_and_counted(
    store_dir: Path,
    name: str,
    settings: dict[str, str] | None,
    config: dict[str, Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with filled(store_dir, 3, **config) as group:
        if settings is not None:
            group.store.create_topic(name, 1, settings)
        group.alter(errors_deadletterqueue_topic_name=name)
        group.runs()
        group.ack((0, 2, REJECT))
        settled(group)
        assert group.start() == 3
        assert group.store.metrics()["group=g"]["DeadLetterQueueFailedProduceRequestsPerSec"] == 1
        told()
        assert reason in caplog.text


def test_s6_q67_the_topic_is_made_if_that_is_allowed(store_dir: Path) -> None:
    config = {
        "errors.deadletterqueue.auto.create.topics.enable": True,
        "errors.deadletterqueue.topic.name.prefix": "",
    }
    with filled(store_dir, 3, **config) as group:
        group.alter(errors_deadletterqueue_topic_name="dead")
        group.runs()
        group.ack((0, 2, REJECT))
        settled(group)
        assert len(letters(group.store, "dead")) == 3
        info = group.store.topics()["dead"]
        assert info.settings.explicit == {"errors.deadletterqueue.group.enable", "message.timestamp.type"}


def test_s6_a_topic_that_was_deleted_meanwhile(store_dir: Path) -> None:
    with with_queue(store_dir, 3) as group:
        group.runs()
        group.store.delete_topic("dlq.t")
        group.ack((0, 2, REJECT))
        settled(group)
        assert group.start() == 3


def test_q66_the_queue_is_asked_for_at_each_transition(store_dir: Path) -> None:
    with with_queue(store_dir, 3) as group:
        group.runs()
        group.alter(errors_deadletterqueue_topic_name=None)
        group.ack((0, 0, REJECT))
        group.alter(errors_deadletterqueue_topic_name="dlq.t")
        group.ack((1, 1, REJECT))
        settled(group)
        group_settings(group.store).set_share_version(1)
        group.ack((2, 2, REJECT))
        assert [each["offset"] for each in letters(group.store)] == ["1"]
        assert group.start() == 3


def test_q71_a_full_disk_is_waited_for(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "FIRST_RETRY", 0.01)
    full: list[str] = []

    def fault(name: str, args: tuple[Any, ...]) -> None:
        if full and "dlq.t-0" in str(getattr(args[0], "path", "")):
            raise OSError(28, "No space left on device")

    files = FailingFiles({"pwrite", "pwritev"}, fault, 1, 1 << 30)
    with with_queue(store_dir, 3, files=files) as group:
        group.runs()
        full.append("yes")
        group.ack((0, 1, REJECT))
        leader = group.share._leaders.get("g", group.topic_id, 0)
        assert leader is not None
        until(lambda: group.share._metrics.appends["g"] > 1)
        assert group.start() == 0
        assert leader.letters
        group.ack((2, 2, ACCEPT))
        full.clear()
        settled(group)
        assert letters(group.store) == [letter(0), letter(1)]
        assert group.start() == 3


def test_q71_what_waits_as_the_store_closes_is_copied_after_the_next_open(store_dir: Path) -> None:
    full: list[str] = []

    def fault(name: str, args: tuple[Any, ...]) -> None:
        if full and "dlq.t-0" in str(getattr(args[0], "path", "")):
            raise OSError(28, "No space left on device")

    group = with_queue(store_dir, 3, files=FailingFiles({"pwrite", "pwritev"}, fault, 1, 1 << 30))
    group.runs()
    full.append("yes")
    group.ack((0, 1, REJECT))
    until(lambda: group.share._metrics.appends["g"])
    group.store.close()
    full.clear()
    with ShareStore(store_dir) as group:
        assert group.durable()[1] == [(0, 1, 3, 1)]
        assert group.runs() == [(2, 2, 1)]
        settled(group)
        assert letters(group.store) == [letter(0), letter(1)]


def test_what_does_not_wait_is_copied_as_the_store_closes(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_queue(store_dir, 3) as group:
        monkeypatch.setattr(group.share._letters, "_plan", lambda seconds: None)
        group.runs()
        group.ack((0, 1, REJECT))
    with ShareStore(store_dir) as group:
        assert group.durable()[1] == [(0, 1, 4, 1)]
        assert letters(group.store) == [letter(0), letter(1)]


@pytest.mark.parametrize(("copied", "times"), [(False, 1), (True, 2)])
def test_q62_a_crash_repeats_the_step(store_dir: Path, tmp_path: Path, copied: bool, times: int) -> None:
    """The rows "Archiving written" and "DLQ record written" of the crash points."""
    with with_queue(store_dir, 3) as group:
        group.runs()
        with group.share._letters._copying:
            group.ack((0, 1, REJECT))
            if copied:
                (leader,) = group.share._leaders.all()
                headers = [dead_letters._headers(leader, leader.letters[0], n) for n in (0, 1)]
                group.store.partition("dlq.t").append_batch([None] * 2, headers=headers)
            after = killed(store_dir, tmp_path / "after")
    with ShareStore(after) as group:
        group.alter(errors_deadletterqueue_topic_name="dlq.t")
        assert group.runs() == [(2, 2, 1)]
        settled(group)
        assert letters(group.store) == [letter(0), letter(1)] * times
        group.ack((2, 2, ACCEPT))
        assert group.start() == 3


def test_q62_also_if_the_queue_was_switched_off(store_dir: Path, tmp_path: Path) -> None:
    with with_queue(store_dir, 3) as group:
        group.runs()
        with group.share._letters._copying:
            group.ack((0, 1, REJECT))
            after = killed(store_dir, tmp_path / "after")
    with ShareStore(after) as group:
        group.alter(errors_deadletterqueue_topic_name=None)
        assert group.runs() == [(2, 2, 1)]
        settled(group)
        assert group.start() == 2
        assert letters(group.store) == []
        assert group.store.metrics()["group=g"]["DeadLetterQueueFailedProduceRequestsPerSec"] == 1


def test_q72_a_loop_is_warned_of_once(store_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with filled(store_dir, 1, errors_deadletterqueue_topic_name_prefix="") as group:
        group.store.alter_topic("t", ENABLED)
        group.alter(errors_deadletterqueue_topic_name="t")
        for n in range(3):
            assert group.runs() == [(n, n, 1)]
            group.ack((n, n, REJECT))
            settled(group)
        told()
        assert sum("its own dead letters" in each for each in caplog.messages) == 1
