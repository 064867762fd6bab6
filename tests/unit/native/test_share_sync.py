"""Promise: of all members of a shared log one syncs at a time, for all that wait (S1); a sync that fails
fences the log for all of them (S2); and whoever syncs behind one that died within a sync writes again what is
not durable (S3).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hand_made_logs import GENERATION, WAITED, Member, Process, made
from native_batches import Input
from oracle import Record
from preloading import compiled
from waiting import until

from segstore._native import ffi, held, lib

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes share a store on Linux only"),
    pytest.mark.kind("members of a shared store"),
]

Started = Callable[..., Process]


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return made(tmp_path)


@pytest.fixture
def start(there: Path) -> Iterator[Started]:
    processes: list[Process] = []

    def started(**arguments: Any) -> Process:
        processes.append(Process(there, **arguments))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()


@pytest.fixture
def looker(there: Path) -> Iterator[Member]:
    """Return a member that appends, and looks at the log."""
    with Member(there) as member:
        yield member


@pytest.fixture
def recorder(there: Path, start: Started, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Process]:
    """Return what starts a member whose writes `written` tells."""
    if os.environ.get("LD_PRELOAD"):
        pytest.skip("another library, the sanitizers' perhaps, is loaded before the recorder")
    library = compiled("recording_writes", tmp_path_factory.mktemp("library"))
    variables = {"LD_PRELOAD": str(library), "RECORDED_WRITES": str(there / "writes")}
    return lambda **arguments: start(variables=variables, **arguments)


def written(there: Path) -> list[tuple[int, int]]:
    """Return where the writes of recorded members began and ended."""
    lines = (there / "writes").read_text().splitlines() if (there / "writes").exists() else []
    return [(int(at), int(at) + int(size)) for at, size in map(str.split, lines)]


def count(there: Path, what: str) -> int:
    return (there / what).stat().st_size if (there / what).exists() else 0


def within(there: Path, process: Process, hold: str = "hold") -> None:
    """Have a process append and flush, and hold it within its sync."""
    (there / "begun").unlink(missing_ok=True)
    syncs = count(there, "syncs")
    (there / hold).touch()
    process.begin("member.flush(member.append())")
    until((there / "begun").exists)
    if hold == "hold_after":
        until(lambda: count(there, "syncs") > syncs)


def kill(there: Path, process: Process) -> None:
    """Kill a process that syncs, and hold no other one."""
    process.kill()
    for name in ("hold", "hold_after", "syncing"):
        (there / name).unlink(missing_ok=True)


def waits(member: Member, processes: int = 1) -> None:
    until(lambda: member.log.sync_waiting >= processes)


# --- S1 ---------------------------------------------------------------------------------


def test_S1_one_sync_at_a_time_serves_all_that_wait(there: Path, start: Started, looker: Member) -> None:
    processes, each = [start() for _ in range(8)], 25
    # While one syncs, the seven others append, and wait.
    for _ in range(3):
        first, *others = processes
        within(there, first)
        for process in others:
            process.begin("member.flush(member.append())")
        waits(looker, 7)
        (there / "hold").unlink()
        assert [process.answer() for process in processes] == [0] * 8
        assert looker.log.synced == looker.end.end.next_offset
    assert count(there, "syncs") == 6
    for process in processes:
        process.begin(f"member.durably({each})")
    assert [process.answer() for process in processes] == [[]] * 8
    assert count(there, "overlaps") == 0
    assert looker.log.synced == looker.end.end.next_offset == 8 * 3 + 8 * each
    assert count(there, "syncs") - 6 < 8 * each
    assert (looker.log.sync_lock, looker.log.sync_from) == (0, -1)


def test_S1_the_word_is_not_taken_from_a_leader_that_is_stopped(
    there: Path, start: Started, looker: Member
) -> None:
    leader, other = start(), start()
    within(there, leader)
    leader.stop()
    other.begin("member.flush(member.append())")
    waits(looker)
    other.has_looked()
    assert looker.log.sync_lock == leader.word
    assert (looker.log.synced, looker.log.sync_from, count(there, "syncs")) == (0, 1, 0)
    (there / "hold").unlink()
    leader.send(signal.SIGCONT)
    assert (leader.answer(), other.answer()) == (0, 0)
    assert (looker.log.synced, count(there, "syncs"), count(there, "overlaps")) == (2, 2, 0)


def test_S1_what_is_durable_is_not_synced_again(there: Path, looker: Member) -> None:
    assert looker.durably(2) == []
    assert [looker.flush(upto) for upto in (2, 1, 0)] == [0, 0, 0]
    assert count(there, "syncs") == 2


def test_S1_the_host_keeps_members_from_syncing(there: Path, start: Started, looker: Member) -> None:
    host, member = start(host=True), start()
    upto = looker.append()
    assert host.ask("member.begin()") == 0
    member.begin(f"member.flush({upto})")
    waits(looker)
    member.has_looked()
    assert looker.log.synced == 0
    host.ask(f"member.finish({upto})")
    assert member.answer() == 0
    assert (looker.log.synced, count(there, "syncs"), looker.log.sync_lock) == (upto, 0, 0)


def test_S1_a_leader_leaves_the_word_to_the_host_that_waits(
    there: Path, start: Started, looker: Member
) -> None:
    leader, other, host = start(), start(look_ms=20_000), start(host=True)
    within(there, leader)
    other.begin("member.flush(member.append())")
    waits(looker)
    host.begin("member.begin()")
    until(lambda: looker.log.sync_lock == leader.word | WAITED)
    host.stop()
    (there / "hold").unlink()
    assert leader.answer() == 0
    until(lambda: looker.log.sync_waiting or looker.log.synced == 2)
    assert (looker.log.sync_lock, looker.log.synced) == (WAITED, 1)
    host.send(signal.SIGCONT)
    assert host.answer() == 0
    assert count(there, "syncs") == 1
    host.ask("member.finish()")
    assert other.answer() == 0
    assert (count(there, "syncs"), looker.log.synced) == (2, 2)


@pytest.mark.parametrize("end", ["killed", "interrupted"])
def test_S1_members_go_on_if_a_host_comes_no_more(
    there: Path, start: Started, looker: Member, end: str
) -> None:
    leader, other, host = start(), start(), start(host=True)
    within(there, leader)
    host.begin("member.begin()")
    until(lambda: looker.log.sync_lock == leader.word | WAITED)
    host.send(signal.SIGKILL if end == "killed" else signal.SIGUSR1)
    if end == "interrupted":
        assert host.answer() == -errno.EINTR
    else:
        host.kill()
    other.begin("member.flush(member.append())")
    waits(looker)
    (there / "hold").unlink()
    assert (leader.answer(), other.answer()) == (0, 0)
    assert (looker.log.synced, looker.log.sync_lock) == (2, 0)


def test_S1_a_host_has_a_word_that_an_interrupt_has_left_it(start: Started) -> None:
    host = start(host=True)
    assert host.ask("[member.begin(), member.begin(), member.finish(), member.begin()]") == [0, 0, None, 0]


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ("share.generation = 2", lib.SEG_SLOW),
        ("end.generation = 2", lib.SEG_SLOW),
        ("log.by_log_only = 2", lib.SEG_SLOW),
        ("log.by_log_only = -1", lib.SEG_SLOW),
        ("log.key = 8", lib.SEG_SLOW),
        ("log.current = 0", lib.SEG_SLOW),
        ("end.end.next_offset = 0", lib.SEG_SLOW),
        ("here[0] = 0", lib.SEG_SLOW),
        ("log.failed = 5", -5),
        ("log.synced = 1", 0),
        ("log.synced, log.failed = 1, 5", 0),
    ],
)
def test_who_may_sync(looker: Member, there: Path, change: str, answer: int) -> None:
    looker.append()
    names = {"share": looker.share, "log": looker.log, "end": looker.end, "here": looker.here}
    exec(change, names)
    assert looker.flush(1) == answer
    assert (count(there, "syncs"), looker.log.sync_lock) == (0, 0)


def test_a_child_lets_go_of_nothing(there: Path) -> None:
    with Member(there, host=True) as host:
        assert host.begin() == 0
        word, host.here[0] = int(host.log.sync_lock), 0
        host.finish(5, errno.EIO)
        assert (host.begin(), host.log.sync_lock, host.log.synced, host.log.failed) == (0, word, 0, 0)
        host.log.sync_lock = 0
        assert (host.begin(), host.log.sync_lock) == (0, 0)


def test_a_sync_that_was_not_tried_is_the_hosts(looker: Member) -> None:
    looker.append()
    refused = ffi.callback("int64_t(int32_t, int32_t *)", lambda fd, failed: lib.SEG_SLOW)
    assert lib.seg_share_flush(looker.share, looker.fd, refused, 1) == lib.SEG_SLOW
    assert (looker.log.sync_lock, looker.log.sync_from, looker.log.failed) == (0, -1, 0)
    assert lib.seg_share_flush(looker.share, looker.fd, ffi.NULL, 1) == 0


def test_messages_that_are_not_durable_make_a_flush_due(looker: Member) -> None:
    looker.log.synced = 10
    cases = {(11, 1): 1, (10, 1): 0, (14, 5): 0, (15, 5): 1, (100, 0): 0}
    assert {case: lib.seg_share_is_due(looker.share, *case) for case in cases} == cases


def test_what_more_is_to_be_synced_is_counted(looker: Member) -> None:
    share, log = looker.share, looker.log
    log.by_log_only = -1
    assert lib.seg_share_sync_less(share, 0, 3) == 1
    lib.seg_share_sync_more(share, 5)
    assert (lib.seg_share_sync_less(share, 4, 3), log.by_log_only) == (0, -6)  # of a sync that began before
    assert (lib.seg_share_sync_less(share, 5, 3), log.by_log_only) == (1, 3)
    assert (lib.seg_share_sync_less(share, 5, 4), log.by_log_only) == (1, 4)


def test_a_signal_ends_a_wait(there: Path, start: Started, looker: Member) -> None:
    leader, others = start(), [start(), start(host=True)]
    within(there, leader)
    for other, call in zip(others, ("member.flush(member.append())", "member.begin()"), strict=True):
        other.begin(call)
        waits(looker)
        other.send(signal.SIGUSR1)
        assert other.answer() == -errno.EINTR
    (there / "hold").unlink()
    assert leader.answer() == 0


# --- S2 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "told"), [(errno.ENOSPC, errno.ENOSPC), (errno.EIO, errno.EIO), (errno.EINTR, errno.EIO)]
)
def test_S2_a_sync_that_fails_fences_the_log_for_all(
    there: Path, start: Started, looker: Member, number: int, told: int
) -> None:
    leader, *others = processes = [start() for _ in range(3)]
    assert looker.durably(1) == []
    within(there, leader)
    for other in others:
        other.begin("member.flush(member.append())")
    waits(looker, 2)
    (there / "fail").write_text(str(number))
    (there / "hold").unlink()
    assert [process.answer() for process in processes] == [-told] * 3
    (there / "fail").unlink()
    assert start().ask("member.flush(member.append())") == -told
    assert (count(there, "syncs"), looker.log.synced, looker.log.failed) == (2, 1, told)
    assert looker.flush(1) == 0  # that was durable before
    assert (looker.log.sync_lock, looker.log.sync_from) == (0, -1)


def test_S2_a_sync_of_the_hosts_that_fails_fences_the_log_for_all(
    there: Path, start: Started, looker: Member
) -> None:
    host, member = start(host=True), start()
    assert host.ask("member.begin()") == 0
    member.begin("member.flush(member.append())")
    waits(looker)
    host.ask(f"member.finish(-1, {errno.EDQUOT})")
    assert member.answer() == -errno.EDQUOT
    assert (count(there, "syncs"), looker.log.synced) == (0, 0)


# --- S3 ---------------------------------------------------------------------------------


def first_two_durable(member: Member) -> int:
    """Make two batches durable, and append two more; return where these begin."""
    assert member.durably(2) == []
    position = int(member.end.end.position)
    member.append(count=2)
    return position


@pytest.mark.parametrize("died", ["hold", "hold_after"])
@pytest.mark.parametrize(
    "known", ["its position is known", "its position is not known", "nothing", "in an earlier segment"]
)
def test_S3_what_is_not_durable_is_written_again(
    there: Path, start: Started, recorder: Started, looker: Member, died: str, known: str
) -> None:
    position = first_two_durable(looker)
    if known == "its position is not known":  # the host has told of it
        looker.log.synced_offset, looker.log.synced_position = 1, position // 2 + 1
    elif known == "nothing":
        position, looker.log.synced = 0, 0
    elif known == "in an earlier segment":
        position, looker.log.synced = 0, 1
        for end in looker.log.ends:
            end.end.base_offset = 1
    leader = start()
    within(there, leader, died)
    before = int(looker.log.synced)
    assert looker.log.sync_from == 5
    kill(there, leader)
    bytes_before = (there / "segment").read_bytes()
    syncs = count(there, "syncs")
    assert looker.log.synced == before
    follower = recorder()
    assert follower.ask("member.flush()") == 0
    assert written(there) == [(position, len(bytes_before))]
    assert (there / "segment").read_bytes() == bytes_before
    assert (count(there, "syncs"), looker.log.synced, looker.log.sync_from) == (syncs + 1, 5, -1)
    assert follower.ask("member.flush(member.append())") == 0
    assert len(written(there)) == 2  # that of the append


def test_S3_nothing_is_written_again_while_all_live(recorder: Started, there: Path) -> None:
    assert recorder().ask("member.durably(3)") == []
    assert len(written(there)) == 3


@pytest.mark.parametrize(
    ("at", "answer"), [(0, 0), (-1, -errno.EIO), ("unsynced", -errno.EIO), ("beyond", 0)]
)
def test_S3_damage_fences_the_log(
    there: Path, start: Started, looker: Member, at: int | str, answer: int
) -> None:
    position = first_two_durable(looker)
    leader = start()
    within(there, leader)
    kill(there, leader)
    data = bytearray((there / "segment").read_bytes())
    if at == "beyond":  # the torn write of one that has died, which is not in the log
        data += b"torn"
    else:
        data[position + 70 if at == "unsynced" else int(at)] ^= 1
    (there / "segment").write_bytes(data)
    assert looker.flush() == answer
    assert start().ask("member.flush()") == answer
    assert (count(there, "syncs"), looker.log.synced) == ((3, 5) if answer == 0 else (2, 2))
    assert (looker.log.failed, looker.log.sync_lock) == (-answer, 0)


@pytest.mark.parametrize("how", ["read only", "too short"])
def test_S3_what_cannot_be_written_again_fences_the_log(
    there: Path, start: Started, looker: Member, how: str
) -> None:
    first_two_durable(looker)
    leader = start()
    within(there, leader)
    kill(there, leader)
    if how == "too short":
        os.truncate(there / "segment", (there / "segment").stat().st_size - 1)
    follower = start(write=how != "read only")
    told = -errno.EBADF if how == "read only" else -errno.EIO
    assert follower.ask("member.flush()") == told
    assert (looker.flush(), count(there, "syncs")) == (told, 2)


def test_S3_one_that_dies_behind_a_dead_one_is_followed_too(
    there: Path, start: Started, recorder: Started, looker: Member
) -> None:
    position = first_two_durable(looker)
    for _ in range(2):
        leader = start()
        within(there, leader)
        kill(there, leader)
    assert recorder().ask("member.flush()") == 0
    assert written(there) == [(position, (there / "segment").stat().st_size)]
    assert looker.log.synced == 6


def test_S3_one_that_waits_takes_the_word_of_the_dead(
    there: Path, start: Started, recorder: Started, looker: Member
) -> None:
    leader, waiter = start(), recorder()
    upto = looker.append()
    within(there, leader)
    waiter.begin(f"member.flush({upto})")
    waits(looker)
    kill(there, leader)
    assert waiter.answer() == 0
    assert written(there) == [(0, (there / "segment").stat().st_size)]


def test_S3_is_left_to_a_member_that_can(
    there: Path, start: Started, recorder: Started, looker: Member
) -> None:
    leader, recorded = start(), recorder()
    within(there, leader)
    kill(there, leader)
    looker.share.generation = GENERATION + 1
    assert looker.flush() == lib.SEG_SLOW
    assert looker.log.sync_from == 1
    assert recorded.ask("member.flush()") == 0
    assert written(there) == [(0, (there / "segment").stat().st_size)]


@pytest.mark.parametrize("noted", [True, False])
def test_S3_the_next_host_follows_a_dead_one(
    there: Path, start: Started, looker: Member, noted: bool
) -> None:
    host, member, upto = start(host=True), start(), looker.append()
    assert host.ask("member.begin()") == 0
    if noted:
        looker.log.sync_from = upto
    member.begin(f"member.flush({upto})")
    waits(looker)
    host.kill()
    assert member.answer() == lib.SEG_SLOW  # rule L7
    following = start(host=True)
    assert following.ask("member.begin()") == int(noted)
    following.ask("member.finish()")
    assert looker.log.sync_from == (upto if noted else -1)  # nothing was synced
    assert following.ask("member.begin()") == int(noted)
    following.ask(f"member.finish({upto})")
    assert (looker.log.sync_from, looker.log.synced, member.ask(f"member.flush({upto})")) == (-1, upto, 0)


def test_S3_a_host_behind_a_member_writes_again(there: Path, start: Started) -> None:
    leader, host = start(), start(host=True)
    within(there, leader)
    kill(there, leader)
    assert host.ask("member.begin()") == 1


# --- bytes that are written again -------------------------------------------------------


def batches(*sizes: int) -> tuple[bytes, list[int]]:
    """Return batches of one record each, with values of these sizes, and where they begin."""
    data, begins = b"", []
    for offset, size in enumerate(sizes):
        records = [Record(0, 1, None, b"x" * size, [])]
        one, headers, _ = Input(records).encode(batch_bytes=1 << 24, capacity=size + 1000)
        out = ffi.new("uint8_t[]", one)
        lib.seg_assign(out, len(one), held("seg_batch *", headers), 1, offset, 0, -1, len(data))
        begins.append(len(data))
        data += bytes(ffi.buffer(out, len(one)))
    return data, begins


MIB = 1 << 20


@pytest.mark.parametrize(
    "sizes",
    [(10,), (10,) * 1000, (MIB,) * 3, (10, 3 * MIB, 10), (MIB - 100, 10, MIB)],
    ids=["one", "many", "each larger than a piece", "one large", "around a piece"],
)
def test_all_batches_are_written_again(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    data, begins = batches(*sizes)
    path, middle = tmp_path / "log", len(begins) // 2
    path.write_bytes(data + b"behind")
    fd = os.open(path, os.O_RDWR)
    try:
        for offset, position in ((0, -1), (0, 0), (middle, -1), (0, begins[middle]), (len(sizes), -1)):
            assert lib.seg_write_again(fd, offset, position, len(data)) == 0
        for number in {0, middle, len(sizes) - 1}:
            at = begins[number] + 75 if sizes[number] > 20 else begins[number] + 65
            os.pwrite(fd, bytes([data[at] ^ 1]), at)
            assert lib.seg_write_again(fd, 0, 0, len(data)) == -errno.EIO
            os.pwrite(fd, data[at : at + 1], at)
        assert lib.seg_write_again(fd, 0, 0, len(data) - 1) == -errno.EIO
        assert lib.seg_write_again(fd, 0, 0, len(data) + 6) == -errno.EIO
        assert lib.seg_write_again(fd, 0, 0, len(data) + 7) == -errno.EIO
    finally:
        os.close(fd)
    assert path.read_bytes() == data + b"behind"
