"""Promise: an append by one call of C leaves the same bytes, results and errors as the long way."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from golden_logs.calls import (
    Call,
    Sender,
    Senders,
    Side,
    draw_append,
    draw_batch,
    draw_config,
    draw_other,
    known,
)
from stores import START_MS, tree

from segstore.storage.log import append
from segstore.storage.log.append import Appended
from segstore.storage.segment import native_tail

SEEDS = 60
STEPS = 120


class Way(Side):
    """One of the two stores, of which one lends tails."""

    def __init__(self, path: Path, config: dict[str, Any], short: bool, patch: pytest.MonkeyPatch) -> None:
        self.short, self.lent, self._patch = short, 0, patch
        super().__init__(path, config)

    def do(self, call: Call) -> object:
        self._patch.setattr(native_tail, "enabled", self.short)
        assert self.log._own is not None
        self.lent += self.log._own.tail.may_be_open
        return super().do(call)


def files_of(side: Way) -> dict[str, object]:
    """The partition's files, but for that with the topic's id."""
    return {
        name: data
        for name, data in tree(side.path).items()
        if name.startswith("t-0") and "metadata" not in name
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_ways_write_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    config = draw_config(rng)
    if seed % 6 == 0:
        config["message.timestamp.type"] = "LogAppendTime"
    sides = [Way(tmp_path / way, config, way == "short", monkeypatch) for way in ("short", "long")]
    draws = [draw_append] * 9 + [draw_batch] + [Senders().draw] * 9 + [draw_other] * 2
    for _ in range(STEPS):
        call = rng.choice(draws)(rng)
        short, long = (side.do(call) for side in sides)
        assert repr(short) == repr(long)
    assert sides[1].lent == 0
    short, long = (side.do(known) for side in sides)
    assert repr(short) == repr(long)
    for side in sides:
        side.close()
    assert files_of(sides[0]) == files_of(sides[1])


def test_the_short_way_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above compared the long way with itself."""
    side = Way(tmp_path / "short", {}, True, monkeypatch)
    counted: Counter[bool] = Counter()
    with side.store:
        for seed in range(300):
            appended = side.do(draw_append(random.Random(seed)))
            counted[isinstance(appended, int)] += 1
    assert counted[True] > 70
    assert side.lent > 200


@pytest.mark.parametrize(
    "headers", [[("h", b"v")], [("é", None), ("", b""), ("é", None)], [("h", b"v")] * 200]
)
def test_a_record_with_headers_takes_the_short_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: list[tuple[str, bytes | None]]
) -> None:
    side = Way(tmp_path / "short", {}, True, monkeypatch)
    with side.store:
        monkeypatch.setattr(native_tail, "enabled", True)
        for _ in range(2):
            side.log.append(b"the long way", timestamp=START_MS)
        for given in (headers, tuple(headers)):
            assert side.log.append(b"v", b"k", given, expected_offset=side.log.end_offset)
        assert side.log._own.tail.native.c.appends == 2  # type: ignore[union-attr]
        assert [record.headers for record in side.log.read(2)] == [headers] * 2


def test_producers_take_the_short_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most appends that follow the last one of their producer are not left to Python."""
    side, long = Way(tmp_path / "short", {}, True, monkeypatch), list[object]()
    write = append.write

    def counted(*args: Any) -> int:
        long.append(args)
        return write(*args)

    monkeypatch.setattr(append, "write", counted)
    sender, rng, written = Sender(5), random.Random(0), 0
    with side.store:
        side.log.append(b"no later than the others", timestamp=START_MS)
        for _ in range(300):
            written += isinstance(side.do(sender.draw_append(rng)), Appended)
    assert written > 200
    assert len(long) < 150
