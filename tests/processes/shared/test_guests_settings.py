"""Promise: a guest keeps a topic's settings as they are when its append begins, whoever has changed them, and
a topic that was deleted is another one when its name comes again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shared_members import MemberError, MemberProcess, members
from waiting import until

pytestmark = pytest.mark.kind("members of a shared store")

LAST = "[log().end_offset, *(f'{r.timestamp} {r.value[:1]}' for r in log().read(log().end_offset - 1))]"
NEVER = (1 << 63) - 1
APPENDS = {
    "a record": "log().append({value}, timestamp={time})",
    "a list": "log().append_batch([{value}], timestamps={time})",
    "compressed": "log().append_batch([{value}], timestamps={time}, compression='zstd')",
    "by a producer": "p.send('t', {value}, partition=0, timestamp_ms={time}).get(30).offset",
}
LONG = "os.urandom(600)"
NOW = "int(time.time() * 1000)"
# name: the settings before, the settings that are changed, value and time of a record, the error with each
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str, str, str]] = {
    "compact from now on": (
        {"cleanup.policy": "delete"},
        {"cleanup.policy": "compact"},
        *("b'x'", NOW, "", "InvalidRecordError"),
    ),
    "compact no more": (
        {"cleanup.policy": "compact"},
        {"cleanup.policy": "delete"},
        *("b'x'", NOW, "InvalidRecordError", ""),
    ),
    "smaller messages": ({}, {"max.message.bytes": 500}, LONG, NOW, "", "RecordTooLargeError"),
    "larger messages": (
        {"max.message.bytes": 500},
        {"max.message.bytes": 5000},
        LONG,
        NOW,
        "RecordTooLargeError",
        "",
    ),
    "nothing old": ({}, {"message.timestamp.before.max.ms": 1000}, "b'x'", "5", "", "InvalidArgumentError"),
    "the old, too": (
        {"message.timestamp.before.max.ms": 1000},
        {"message.timestamp.before.max.ms": NEVER},
        *("b'x'", "5", "InvalidArgumentError", ""),
    ),
    "the future, too": (
        {},
        {"message.timestamp.after.max.ms": NEVER},
        *("b'x'", f"{NOW} + 7_200_000", "InvalidArgumentError", ""),
    ),
}


def outcome(member: MemberProcess, code: str) -> str:
    """Return the error that a call raises, "" without one."""
    try:
        member.run(code)
    except MemberError as error:
        return "InvalidArgumentError" if error.kind == "InvalidTimestampError" else error.kind
    return ""


@pytest.mark.parametrize("how", APPENDS)
@pytest.mark.parametrize("name", SETTINGS)
def test_an_append_keeps_the_settings_of_now(tmp_path: Path, name: str, how: str) -> None:
    before, changed, value, time, first, second = SETTINGS[name]
    code = APPENDS[how].format(value=value, time=time)
    with members(tmp_path / "s", True, "guest", topic=before) as (host, guest):
        guest.run("p = segstore.Producer(store, linger_ms=0); log().append(b'x', b'k')")
        assert outcome(guest, code) == first
        host.run(f"store.alter_topic('t', {changed!r}) and 0")
        assert outcome(guest, code) == second
        assert guest.run("log().end_offset") == 1 + (not first) + (not second)
        guest.run("p.close()")


@pytest.mark.parametrize("how", APPENDS)
def test_an_append_is_stamped_as_the_settings_of_now_say(tmp_path: Path, how: str) -> None:
    code = APPENDS[how].format(value="b'x'", time="77")
    with members(tmp_path / "s", True, "guest") as (host, guest):
        guest.run("p = segstore.Producer(store, linger_ms=0)")
        for kind, n in (("CreateTime", 1), ("LogAppendTime", 2), ("CreateTime", 3), ("LogAppendTime", 4)):
            host.run(f"store.alter_topic('t', {{'message.timestamp.type': {kind!r}}}) and 0")
            guest.run(code)
            stamps = host.run("[r.timestamp for r in log()]")
            assert len(stamps) == n
            assert (stamps[-1] == 77) is (kind == "CreateTime")
        guest.run("p.close()")


def test_codec_segments_and_index_are_those_of_now(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest") as (host, guest):
        guest.append("x" * 2000)
        size = guest.run("log().size")
        host.run("store.alter_topic('t', {'compression.type': 'zstd'}) and 0")
        guest.append("x" * 2000)
        assert guest.run("log().size") - size < 200
        changed = {"segment.bytes": 1000, "compression.type": "producer", "index.interval.bytes": 1}
        host.run(f"store.alter_topic('t', {changed}) and 0")
        for number in range(10):
            guest.append(str(number) * 300)
        assert guest.run("len([f for f in os.listdir(guest().directory) if f.endswith('.log')])") >= 4
        host.run("store.alter_topic('t', {'segment.bytes': 1 << 20}) and 0")
        for number in range(10):
            guest.append(str(number) * 300)
        assert guest.run("guest()._active.end.offset_entries") >= 8
        assert guest.run("[r.value[:1] for r in log()][2:] == [b'%d' % (n % 10) for n in range(20)]")


def test_a_roll_by_age(tmp_path: Path) -> None:
    count = "len([f for f in os.listdir(guest().directory) if f.endswith('.log')])"
    with members(tmp_path / "s", True, "guest", topic={"segment.ms": 1000, "retention.ms": -1}) as (_, guest):
        assert guest.run("[log().append(b'x', timestamp=t) for t in (5, 1005, 1006, 2006, 2007, -1)]") == [
            *range(6)
        ]
        assert guest.run(count) == 4  # the last has the time of the clock


CLOCKS = {"late": "1_900_000_000_000", "early": "1_000_000_000_000"}


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("name", CLOCKS)
def test_a_guest_with_a_clock_of_its_own_rolls_by_it(tmp_path: Path, name: str, kind: str) -> None:
    topic = {"message.timestamp.type": kind, "message.timestamp.after.max.ms": NEVER, "retention.ms": -1}
    with members(tmp_path / "s", True, "guest", topic=topic) as (host, guest):
        host.append("by the clock of the host")
        guest.run(f"mine = segstore.open(store.path, shared='guest', clock=lambda: {CLOCKS[name]})")
        for n in range(1, 4):
            assert guest.run("mine.partition('t').append(b'x')") == 3 * n - 2
            assert guest.run("mine.partition('t').append_batch([b'x'], timestamps=-1).start") == 3 * n - 1
            assert host.append("x") == 3 * n
        guest.run("mine.close()")


def test_flushes_follow_the_settings_of_now(tmp_path: Path) -> None:
    synced = "guest()._share.log.synced"
    with members(tmp_path / "s", True, "guest", topic={"flush.messages": 1}) as (host, guest):
        for n in (1, 2):
            guest.append("x")
            assert guest.run(synced) == n
        host.run(f"store.alter_topic('t', {{'flush.messages': {NEVER}, 'flush.ms': 50}}) and 0")
        guest.append("x")
        until(lambda: guest.run(synced) == 3)
        host.run(f"store.alter_topic('t', {{'flush.ms': {NEVER}}}) and 0")
        guest.append("x")
        assert guest.run(f"log().flush(); {synced}") == 4


def test_a_guest_syncs_by_itself_behind_an_append_of_the_host(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest", topic={"flush.messages": 1}) as (host, guest):
        host.append("x")  # synced before the log is open to guests
        guest.append("x")
        assert guest.run("guest()._share.log.by_log_only == guest()._share.generation")
        guest.run("asked = []; ask = side.ask; side.ask = lambda *a: asked.append(a) or ask(*a)")
        guest.append("x")
        assert guest.run("(guest()._share.log.synced, len(asked))") == [3, 0]


DURABLE = {
    "a record": "log().append(b'x')",
    "a list": "log().append_batch([b'x', b'y'])",
    "compressed": "log().append_batch([b'x'] * 3, compression='zstd')",
    "some batches": "log().append_batch([bytes(900)] * 20, batch_bytes=2000)",
}


@pytest.mark.parametrize("code", DURABLE.values(), ids=DURABLE)
def test_each_append_of_a_guest_is_durable_and_c_syncs_it(tmp_path: Path, code: str) -> None:
    with members(tmp_path / "s", True, "guest", topic={"flush.messages": 1}) as (host, guest):
        guest.append("x")
        guest.run("tail = guest().tail; calls = []; flush = tail.flush_to")
        guest.run("tail.flush_to = lambda n: calls.append(n) or flush(n)")
        for _ in range(3):
            guest.run(f"{code} and 0")
            assert guest.run("guest()._share.log.synced") == host.run("log().end_offset")
        assert guest.run("calls") == []
        host.append("x")  # another process syncs, and the guest goes by that
        guest.run(f"{code} and 0")
        assert guest.run("guest()._share.log.synced") == host.run("log().end_offset")


# --- topics that go and come --------------------------------------------------------------------

WAYS = {
    "a record": "old.append(b'x')",
    "a list": "old.append_batch([b'x'])",
    "compressed": "old.append_batch([b'x'], compression='zstd')",
    "more than 4 MiB": "old.append_batch([bytes(100)] * 60_000)",
    "a flush": "old.flush()",
    "a read": "old.read(0)",
    "its end": "old.end_offset",
}


@pytest.mark.parametrize("used", [False, True], ids=["not used before", "used before"])
def test_a_deleted_topic_is_gone_for_a_guest_also_if_its_name_comes_again(tmp_path: Path, used: bool) -> None:
    with members(tmp_path / "s", True, "guest") as (host, guest):
        guest.run("old = log()" + ("; old.append(b'x')" if used else ""))
        host.run("store.delete_topic('t')")
        for way, code in WAYS.items():
            assert outcome(guest, code) == "StoreClosedError", way
        assert outcome(guest, "log()") == "UnknownTopicOrPartitionError"
        assert guest.run("store.flush()") is None
        host.run("store.create_topic('t') and 0")
        assert guest.append("new") == 0
        for way, code in WAYS.items():
            assert outcome(guest, code) == "StoreClosedError", way
        assert guest.run("[r.value for r in log()] == [b'new']")
        assert guest.run("len(side._guests)") == 1


def test_an_old_log_stays_closed_in_a_guest_that_became_the_host(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, True) as (host, heir):
        heir.run("old = log(); old.append(b'x')")
        host.kill()
        until(lambda: heir.run("store.role") == "host")
        heir.run("store.delete_topic('t'); store.create_topic('t') and 0")
        for way, code in WAYS.items():
            assert outcome(heir, code) == "StoreClosedError", way
        assert heir.append("new") == 0


def test_a_topic_is_deleted_while_guests_append(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest", "guest") as (host, *guests):
        for guest in guests:
            guest.begin("while True: log().append(b'x')")
        until(lambda: host.run("log().end_offset") > 1000)
        host.run("store.delete_topic('t')")
        for guest in guests:
            with pytest.raises(MemberError) as error:
                guest.result()
            assert error.value.kind in ("StoreClosedError", "UnknownTopicOrPartitionError")


def test_partitions_are_added(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest") as (host, guest):
        guest.append("x")
        host.run("store.add_partitions('t', 3) and 0")
        assert [guest.append("x", number) for number in range(3)] == [1, 0, 0]


def test_records_are_deleted_while_a_guest_appends(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest", topic={"segment.bytes": 2000}) as (host, guest):
        guest.run("[log().append(b'x' * 100) for _ in range(100)] and 0")
        host.run("log().delete_records(70)")
        assert guest.run("[log().start_offset, [r.offset for r in log()] == [*range(70, 100)]]") == [70, True]
        assert guest.append("x") == 100
        assert outcome(guest, "log().read(0)") == "OffsetOutOfRangeError"
        with pytest.raises(MemberError, match=r"delete_records\(\)"):
            guest.run("log().delete_records(80)")
        host.run("log().delete_records(-1)")
        assert guest.run("[log().start_offset, log().append(b'y'), len(log().read(101))]") == [101, 101, 1]


def test_sweeps_of_the_host_take_what_a_guest_has_appended(tmp_path: Path) -> None:
    topic = {
        "segment.bytes": 2000,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0.0,
        "segment.ms": 1,
    }
    with members(tmp_path / "s", True, "guest", topic=topic) as (host, guest):
        guest.run("[log().append(b'%d' % n, b'%d' % (n % 3)) for n in range(200)] and 0")
        until(lambda: host.run("store.sweep(); sum(1 for _ in log())") < 50)
        assert guest.run("sorted({r.key: int(r.value) for r in log()}.values())") == [197, 198, 199]
        assert guest.run("log().append(b'x', b'k')") == 200
        host.run("store.alter_topic('t', {'cleanup.policy': 'delete', 'retention.bytes': 1}) and 0")
        guest.run("[log().append(b'%d' % n) for n in range(200)] and 0")
        until(lambda: host.run("store.sweep(); log().start_offset") > 200)
        assert guest.run("[r.offset for r in log()][-1]") == 400
