"""Promise: a segment that was sealed while a stopped process may write to it still costs no record, whatever
comes of the segment, its topic and the host meanwhile (A1 to A5).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shared_members import MemberProcess, SharedWords, members
from stores import seen_values, values
from waiting import until

import segstore

pytestmark = pytest.mark.kind("members of a shared store")

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


@contextmanager
def fenced(
    root: Path, halting: Path, topic: dict[str, object]
) -> Iterator[tuple[MemberProcess, MemberProcess]]:
    """Run a host and a guest that is stopped within a write of offset 1, behind which the log has gone on in
    a segment that begins with offset 1.
    """
    with members(root, True, topic=topic) as [host], MemberProcess(root, preload=halting) as guest:
        guest.opened()
        guest.run("log().append(b'0', key=b'a')")
        guest.run("halt(WRITE)")
        guest.begin("log().append(b'late', key=b'late')")
        guest.await_stop()
        assert host.run("log().append(b'1', key=b'b')") == 1
        assert len(SharedWords(root).log().sealed) == 1
        yield host, guest
        guest.kill()


def test_A5_a_segment_that_may_be_written_to_is_not_compacted(store_dir: Path, halting: Path) -> None:
    """Compaction would join it with the next ones, under its name: who cuts it then would cut these."""
    with fenced(store_dir, halting, COMPACTED) as (host, guest):
        host.run("for n in range(40): log().append(b'v%d' % n, key=b'k%d' % n)")
        host.run("log().partition_for_write().roll()")
        host.run("store.sweep() and 0")
        assert len(seen_values(store_dir)) == 42
        guest.go_on()
        assert guest.result() == 42
        assert not SharedWords(store_dir).log().sealed
        assert len(seen_values(store_dir)) == 43
        host.run("store.sweep() and 0")
        assert len(seen_values(store_dir)) == 43
        assert len(list((store_dir / "t-0").glob("*.log"))) == 2


def test_A5_the_next_partition_of_a_slot_has_no_sealed_segments(store_dir: Path, halting: Path) -> None:
    with fenced(store_dir, halting, {}) as (host, guest):
        number = SharedWords(store_dir).number()
        host.run("store.delete_topic('t'); store.create_topic('u') and 0")
        host.run("for n in range(40): store.partition('u').append(b'value %d' % n)")
        assert SharedWords(store_dir).number() == number  # the slot is that of "u" now
        with segstore.open(store_dir, "r") as store:
            assert len(values(store.partition("u"))) == 40
        guest.kill()
        until(lambda: not SharedWords(store_dir).log().sealed)
        with segstore.open(store_dir, "r") as store:
            assert len(values(store.partition("u"))) == 40


TAKE = """
of = side.partition("t", 0).tail.native.c.share
seen = ffi.new("uint64_t *")
lib.seg_lock_take(of.member, ffi.addressof(of.log, "lock"), lib.SEG_OF_HOST, 0, -1, seen)
"""


def test_L7_a_writer_that_does_not_share_takes_the_lock_of_a_dead_host(store_dir: Path) -> None:
    """It fences nobody then: the dead host may have begun a fence itself."""
    with members(store_dir, True) as [host]:
        host.run("log().append(b'0'); log().append(b'1')")
        assert SharedWords(store_dir).log().is_open
        assert host.run(TAKE) == 0
        host.kill()
    with segstore.open(store_dir) as store:
        assert store.partition("t").append(b"2") == 2
    assert len(list((store_dir / "t-0").glob("*.log"))) == 1
