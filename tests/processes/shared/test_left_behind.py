"""Promise: what members of a shared store have left behind, all of whom are dead, or one of whom is stopped,
harms nobody who comes after them: a writer that does not share, a next host, a recovery, a reader. Storms
found each of these (tests/processes/shared_storm).
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import HookedFiles
from shared_members import SMALL, MemberProcess, SharedWords, members
from stores import in_child, logs, values
from waiting import PATIENCE, until

import segstore
from segstore._native import lib
from segstore.files import Files
from segstore.storage.log.partition import Partition
from segstore.storage.shared.members import Members
from segstore.storage.shared.shared_file import SharedFile

pytestmark = pytest.mark.kind("members of a shared store")

RECORD = 69
"""Bytes of a batch of one record whose value is one byte."""


class Rebooted(Files):
    """Files of another start of the machine."""

    def boot(self) -> int:
        return super().boot() ^ 1


def leave_fenced(root: Path, halting: Path) -> None:
    """Leave a store whose members are dead; its first segment has bytes of a fenced one behind its end."""
    with members(root, True, "guest", "guest", preload=halting) as (host, stopped, waits):
        waits.append("a")
        stopped.append("b")
        stopped.run("halt(WRITE, BEHIND)")
        stopped.begin("log().append(b'S' * 300)")
        stopped.await_stop()
        assert waits.append("w") == 2
        host.run("store.flush(); side.partitions.checkpoint()")
        for each in (host, waits, stopped):  # in this order: a host that lives would cut
            each.kill()
    words = SharedWords(root).log()
    assert words.sealed
    assert logs(root)[0].stat().st_size > 2 * RECORD


OPENS: dict[str, Callable[[Path], Any]] = {
    "a writer that does not share": lambda root: segstore.open(root),
    "a host that closes as the last": lambda root: segstore.open(root, shared=True),
    "a recovery behind a crash of the machine": lambda root: segstore.open(root, files=Rebooted()),
}


@pytest.mark.parametrize("name", OPENS)
def test_A5_who_comes_behind_dead_members_cuts_what_a_fenced_one_has_left(
    name: str, store_dir: Path, halting: Path
) -> None:
    leave_fenced(store_dir, halting)
    with OPENS[name](store_dir) as store:
        assert values(store.partition("t")) == [b"a", b"b", b"w"]
    if "recovery" in name:  # in this start of the machine it would be believed
        (store_dir / ".segstore" / "shared").unlink(missing_ok=True)
    assert logs(store_dir)[0].stat().st_size == 2 * RECORD
    assert segstore.check(store_dir) == []


def test_A5_a_next_host_ends_a_segment_that_a_stopped_process_may_write_to(
    store_dir: Path, halting: Path
) -> None:
    with members(store_dir, True, "guest", "guest", preload=halting) as (host, stopped, waits):
        waits.append("a")
        stopped.append("b")
        stopped.run("halt(WRITE, BEHIND)")
        stopped.begin("log().append(b'S' * 300)")
        stopped.await_stop()
        assert waits.append("w") == 2
        host.kill()
        with MemberProcess(store_dir, True, SMALL) as next_one:
            next_one.opened()
            assert next_one.run("side.partition('t', 0).view.end_of(0)") == 2 * RECORD
            next_one.run("store.flush()")
            stopped.go_on()
            assert stopped.result() == 3
            assert next_one.append("n") == 4
            waits.close()
            stopped.close()


def test_a_writer_that_does_not_share_opens_a_log_that_was_left_sealed(store_dir: Path) -> None:
    with members(store_dir, True) as (host,):
        host.append("a")
        host.kill()
    file = SharedFile.join(Files(), str(store_dir))
    assert file is not None
    log = file.log(SharedWords(store_dir).number())
    end = log.ends[2 * (log.current >> 8 & lib.SEG_SEATS - 1) + (log.current & 1)]
    end.is_sealed, end.generation = 1, end.generation + 1  # as a host that died within a fence leaves it

    def open_and_append(tell: Callable[[str], None]) -> None:
        with segstore.open(store_dir) as store:
            store.partition("t").append(b"w")
            tell(str(len(values(store.partition("t")))))

    assert in_child(open_and_append) == (0, ["2"])


def test_A3_a_host_that_dies_before_it_has_left_a_sealed_segment_leaves_it_to_the_next(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with members(store_dir, True) as (host,):
        host.append("a")
        host.kill()
    file = SharedFile.join(Files(), str(store_dir))
    assert file is not None
    log = file.log(SharedWords(store_dir).number())
    end = log.ends[2 * (log.current >> 8 & lib.SEG_SEATS - 1) + (log.current & 1)]
    end.is_sealed, end.generation = 1, end.generation + 1

    def die(*args: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def open_and_die(tell: Callable[[str], None]) -> None:
        monkeypatch.setattr(Partition, "leave_sealed", die)
        segstore.open(store_dir, shared=True).partition("t").append(b"lost")

    assert in_child(open_and_die) == (signal.SIGKILL, [])
    assert SharedWords(store_dir).log().is_sealed
    with segstore.open(store_dir, shared=True) as store:
        assert store.partition("t").append(b"w") == 1
        assert [path.name for path in logs(store_dir)] == [f"{0:020}.log", f"{1:020}.log"]


def test_readers_see_no_end_go_back_while_a_member_looks_whether_it_is_the_last(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    with members(store_dir, True, "guest") as (first, guest):
        guest.append("a")
        guest.append("b")
        with segstore.open(store_dir, shared=True) as store, segstore.open(store_dir, "r") as reader:
            first.kill()
            until(lambda: store.role == "host")
            guest.append("c")
            guest.close()
            log, alive = reader.partition("t"), Members.others_alive

            def looks(self: Members) -> bool:
                seen.append(log.end_offset)
                return alive(self)

            monkeypatch.setattr(Members, "others_alive", looks)
            store.close()
            assert log.end_offset == 3
    assert seen
    assert set(seen) == {3}


def test_a_process_that_has_become_host_makes_transactions(store_dir: Path) -> None:
    with members(store_dir, True) as (first,):
        first.append("a")
        with segstore.open(store_dir, shared=True) as store:
            assert store.partition("t").append(b"b") == 1
            first.kill()
            until(lambda: store.role == "host")
            with segstore.Producer(store, transactional_id="x") as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.send("t", b"c")
                producer.commit_transaction()
            log = store.partition("t")
            assert [r.value for r in log.read(0, isolation_level="read_committed")] == [b"a", b"b", b"c"]


class Trimming(HookedFiles):
    """Files whose time index a roll of another process trims just before it is mapped."""

    cut = False

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "map" and self.cut and str(args[0].path).endswith(".timeindex"):
            os.truncate(args[0].path, 12)


def test_a_guest_that_maps_an_index_while_a_roll_trims_it_looks_again(store_dir: Path) -> None:
    files = Trimming()
    with members(store_dir, True) as (host,):
        host.append("a")
        with segstore.open(store_dir, shared="guest", files=files, timeout=PATIENCE) as store:
            partition = store.partition("t").partition_for_write()
            files.cut = True
            index = logs(store_dir)[0].with_suffix(".timeindex")
            copy = index.with_name("copy.timeindex")
            copy.write_bytes(bytes(1200))
            with pytest.raises(FileNotFoundError) as caught:
                partition._map(str(copy), 100, 12)
            copy.unlink()
            assert caught.value.errno == errno.ENOENT
            files.cut = False
