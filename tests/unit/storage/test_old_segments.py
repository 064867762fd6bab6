"""Segments of messages of magic 0 and 1 as a broker has left them: the indexes that it made are taken as they
are.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import message_sets
import pytest
from drawn_sets import MS, Drawn, entry, joined
from message_sets import GZIP, NO_TIMESTAMP, NONE, Message
from stores import records, write_segment

import segstore

APPENDS, PER_APPEND, INTERVAL = 120, 20, 4096


class Left(NamedTuple):
    """What a broker has left of a segment."""

    log: bytes
    index: bytes
    timeindex: bytes
    messages: list[Message]


def appends(magic: int, codec: int) -> list[Drawn]:
    found, offset = [], 0
    for number in range(APPENDS):
        count = 1 + number % PER_APPEND
        stamps = [MS + 1000 * number + (i * 7) % 11 for i in range(count)]
        made = [Message(offset + i, stamp, b"k%d" % i, b"v" * 60) for i, stamp in enumerate(stamps)]
        found.append(entry(magic, codec, made))
        offset += count
    return found


def left(parts: list[Drawn]) -> Left:
    """As LogSegment.append of Kafka 0.10.2 to 2.8: one entry for all of an append, with its largest offset,
    where its first message lies; the time index has the message with the largest timestamp, or its wrapper.
    """
    index, times, since, at, largest, entered = b"", b"", 0, 0, (-1, 0), -1
    for part in parts:
        last = part.messages[-1].offset
        stamp = max(m.timestamp for m in part.messages)
        if stamp > largest[0]:
            alone = len(part.ends) == len(part.messages)
            largest = stamp, next(m.offset for m in part.messages if m.timestamp == stamp) if alone else last
        if since > INTERVAL:
            index += struct.pack(">ii", last, at)
            if largest[0] > entered:
                times += struct.pack(">qi", *largest)
                entered = largest[0]
            since = 0
        since += len(part.data)
        at += len(part.data)
    if largest[0] > entered:
        times += struct.pack(">qi", *largest)
    whole = joined(parts)
    return Left(whole.data, index, times, whole.messages)


KINDS = {"magic 0": (0, NONE), "magic 1": (1, NONE), "magic 0, gzip": (0, GZIP), "magic 1, gzip": (1, GZIP)}


def written(path: Path, found: Left) -> list[Path]:
    log = write_segment(path / "t-0", 0, found.log)
    index, times = log.with_suffix(".index"), log.with_suffix(".timeindex")
    index.write_bytes(found.index)
    times.write_bytes(found.timeindex)
    (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    ends = f"0\n1\nt 0 {found.messages[-1].offset + 1}\n"
    (path / "recovery-point-offset-checkpoint").write_text(ends)
    return [index, times]


@pytest.mark.parametrize("mode", ["r", "rw"])
@pytest.mark.parametrize("name", KINDS)
def test_indexes_of_a_broker_are_kept(tmp_path: Path, name: str, mode: str) -> None:
    found = left(appends(*KINDS[name]))
    assert len(found.index) > 3 * 8
    paths = written(tmp_path, found)
    before = [path.stat().st_ino for path in paths], [path.read_bytes() for path in paths]
    assert segstore.check(tmp_path) == []
    with segstore.open(tmp_path, mode) as store:
        log = store.partition("t")
        for message in found.messages[::37]:
            assert log.read_one(message.offset).value == message.value
            if message.timestamp != NO_TIMESTAMP:
                least = min(m.offset for m in found.messages if m.timestamp >= message.timestamp)
                assert log.offset_for_time(message.timestamp) == least
        assert [r.offset for r in records(log)] == [m.offset for m in found.messages]
        assert log.end_offset == len(found.messages)
    kept = [path.read_bytes()[: len(data)] for path, data in zip(paths, before[1], strict=True)]
    assert ([path.stat().st_ino for path in paths], kept) == before


def test_entries_that_are_wrong_are_found(tmp_path: Path) -> None:
    found = left(appends(1, NONE))
    entries = [found.index[at : at + 8] for at in range(0, len(found.index), 8)]
    last, position = struct.unpack(">ii", entries[3])
    for wrong in (
        struct.pack(">ii", last, position + 1),  # within a message
        struct.pack(">ii", struct.unpack(">ii", entries[2])[0] + 1, position),  # below the message there
    ):
        written(tmp_path, found._replace(index=b"".join([*entries[:3], wrong, *entries[4:]])))
        assert any(finding.path.endswith(".index") for finding in segstore.check(tmp_path))


def test_the_last_messages_are_small(tmp_path: Path) -> None:
    """Smaller than the header of a record batch, at the end of a file."""
    made = [Message(i, NO_TIMESTAMP, None, None) for i in range(5)]
    write_segment(tmp_path / "t-0", 0, message_sets.plain(0, made))
    for mode in ("r", "rw", "r"):
        with segstore.open(tmp_path, mode) as store:
            log = store.partition("t")
            assert [r.offset for r in records(log)] == [0, 1, 2, 3, 4]
            assert log.read_one(4) == (4, -1, None, None, [])
    assert segstore.check(tmp_path) == []
