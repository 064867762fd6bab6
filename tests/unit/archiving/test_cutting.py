"""`cut_log`: what stays of a log, and how a batch that is split is written anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_sets import EACH_KIND, MS
from message_sets import Message

from segstore.archiving.cutting import Limit, cut_log
from segstore.errors import CorruptRecordError
from segstore.files import Files
from segstore.records import (
    CODECS,
    TRANSACTIONAL_FLAG,
    Columns,
    Records,
    Template,
    decode,
    encode,
    scan,
)
from segstore.records.header import APPEND_TIME_FLAG, DELETE_HORIZON_FLAG

FAR = 1 << 40
COLUMNS = Columns(
    [b"value %d" % i * 3 if i != 3 else None for i in range(6)],
    keys=[b"k%d" % i for i in range(6)],
    timestamps=np.arange(6) * 10 + MS,
    headers=[[("h", b"%d" % i)] if i % 2 else [] for i in range(6)],
    offsets=np.array([40, 41, 43, 44, 47, 48]),
)
HEADERS: dict[str, tuple[int, Template]] = {
    **{name: (code, Template(leader_epoch=7, base_offset=40)) for code, name in enumerate(CODECS)},
    "idempotent": (0, Template(0, 5, 3, 100, 40, 7)),
    "transactional": (CODECS.index("zstd"), Template(TRANSACTIONAL_FLAG, 5, 3, 100, 40, 7)),
    "a sequence that wraps": (0, Template(0, 5, 3, (1 << 31) - 3, 40, 7)),
    "append time": (0, Template(APPEND_TIME_FLAG, base_offset=40)),
    "a delete horizon": (
        CODECS.index("lz4"),
        Template(DELETE_HORIZON_FLAG, base_offset=40, delete_horizon=9),
    ),
}
KEPT = ("base_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence", "attributes")
"""Fields of a header that stay as they were, and the first timestamp does."""


def cut(path: Path, data: bytes, time: int | None = None, end: int = FAR, base: int = 0) -> int | None:
    path.write_bytes(data)
    return cut_log(Files(), str(path), base, Limit(time, end))


def read(data: bytes) -> tuple[Any, Records]:
    batches, stop = scan(data)
    assert stop.position == len(data)
    return batches, decode(data, batches, "here")


def messages(records: Records) -> Iterator[Message]:
    for each in records:
        yield Message(each.offset, each.timestamp, each.key, each.value, False)


def told(found: list[Message]) -> list[Message]:
    return [each._replace(append_time=False) for each in found]


def test_each_kind_is_cut_at_each_offset(tmp_path: Path) -> None:
    said = EACH_KIND.messages
    for end in range(said[-1].offset + 2):
        made = cut(tmp_path / "log", EACH_KIND.data, end=end)
        stays = [each for each in said if each.offset < end]
        left = (tmp_path / "log").read_bytes()
        assert list(messages(read(left)[1])) == told(stays)
        if len(stays) == len(said):
            assert (made, left) == (None, EACH_KIND.data)
        else:
            assert made == (stays[-1].offset + 1 if stays else 0)


@pytest.mark.parametrize("time", [-2, -1, MS - 1, MS, MS + 1, MS + 20, MS + 39, MS + 40])
def test_each_kind_is_cut_at_a_time(tmp_path: Path, time: int) -> None:
    said = EACH_KIND.messages
    late = [i for i, each in enumerate(said) if each.timestamp > time]
    made = cut(tmp_path / "log", EACH_KIND.data, time)
    stays = said[: late[0]] if late else said
    assert list(messages(read((tmp_path / "log").read_bytes())[1])) == told(stays)
    assert made == ((stays[-1].offset + 1 if stays else 0) if late else None)


@pytest.mark.parametrize("name", HEADERS)
def test_what_a_batch_keeps_that_is_split(tmp_path: Path, name: str) -> None:
    codec, template = HEADERS[name]
    data = b"".join(bytes(each.data) for each in encode(COLUMNS, codec, template=template))
    before, whole = read(data)
    for kept in range(1, 6):
        last = int(whole.offsets[kept - 1])
        assert cut(tmp_path / "log", data, end=last + 1, base=40) == last + 1
        after, records = read((tmp_path / "log").read_bytes())
        assert len(after) == 1
        assert {field: after[field][0] for field in KEPT} == {field: before[field][0] for field in KEPT}
        assert after["base_timestamp"][0] == before["base_timestamp"][0]
        assert (after["last_offset"][0], after["count"][0]) == (last, kept)
        assert list(records) == list(whole)[:kept]
        stamp = before["max_timestamp"][0] if name == "append time" else MS + 10 * (kept - 1)
        assert after["max_timestamp"][0] == stamp


def test_a_prefix_ends_before_the_first_later_record(tmp_path: Path) -> None:
    stamps = np.array([5, 30, 10, 10])  # the third and fourth are early enough, and come behind a later one
    data = b"".join(
        bytes(each.data) for each in encode(Columns([b"a", b"b", b"c", b"d"], timestamps=stamps), cuts=[2])
    )
    assert cut(tmp_path / "log", data, 20) == 1
    assert read((tmp_path / "log").read_bytes())[1].offsets.tolist() == [0]


def test_damage_before_the_cut_is_told(tmp_path: Path) -> None:
    data = b"".join(bytes(each.data) for each in encode(COLUMNS, batch_bytes=1))
    size = len(read(data)[0])
    damaged = bytearray(data)
    at = int(read(data)[0]["position"][size // 2])
    damaged[at + 16] = 9  # a magic that there is not
    with pytest.raises(CorruptRecordError):
        cut(tmp_path / "log", bytes(damaged), end=48)
