"""segstore.names: names on disk are formatted and parsed, and other names are not accepted."""

from __future__ import annotations

import os
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitions import broker_partitions

from segstore import names
from segstore.errors import CorruptCheckpointError, InvalidTopicError, InvalidTypeError

GOLDEN_ID = "OqyzI-goTjC51rYcKxyWJw"
HEX = "0123456789abcdef0123456789abcdef"

TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=249).filter(lambda t: t not in (".", ".."))
SUFFIXES = [
    suffix + state
    for suffix in (names.LOG, names.INDEX, names.TIME_INDEX, names.TXN_INDEX, names.SNAPSHOT)
    for state in ("", names.DELETED, names.CLEANED, names.SWAP, names.TEMPORARY)
]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("base_offset", [0, 2879, (1 << 63) - 1])
def test_segment_files_come_back(base_offset: int, suffix: str) -> None:
    name = names.segment_file(base_offset, suffix)
    assert len(name) == 20 + len(suffix)
    assert names.parse_segment_file(name) == (base_offset, suffix)


NO_SEGMENT_FILES = {
    "19 digits": "0000000000000000000.log",
    "21 digits": "000000000000000000000.log",
    "above int64": "09223372036854775808.log",
    "a sign": "-0000000000000000001.log",
    "digits of another script": "٠" * 20 + ".log",
    "no suffix": "00000000000000000000",
    "unknown suffix": "00000000000000000000.logs",
    "only a state": "00000000000000000000.deleted",
    "two states": "00000000000000000000.log.swap.deleted",
    "a newline behind": "00000000000000000000.log\n",
    "text before": "x00000000000000000000.log",
    "a checkpoint": names.LEADER_EPOCHS,
    "nothing": "",
}


@pytest.mark.parametrize("name", NO_SEGMENT_FILES)
def test_no_segment_file(name: str) -> None:
    assert names.parse_segment_file(NO_SEGMENT_FILES[name]) is None


def test_segment_files_of_a_directory() -> None:
    made = [names.segment_file(base, suffix) for base in (0, 7) for suffix in SUFFIXES]
    found = names.segment_files([*made, *NO_SEGMENT_FILES.values()])
    assert found == [names.parse_segment_file(name) for name in made]


@pytest.mark.parametrize("directory", ["store", "store/", "/", "/a/b", "a//"])
@pytest.mark.parametrize("name", ["", "t-0", ".segstore/ends"])
def test_paths_below_a_directory(directory: str, name: str) -> None:
    assert names.below(directory, name) == os.path.join(directory, name)


@given(TOPICS, st.integers(0, names.MAX_PARTITION))
def test_partition_dirs_come_back(topic: str, partition: int) -> None:
    assert names.check_topic(topic) == topic
    assert names.parse_partition_dir(names.partition_dir(topic, partition)) == (topic, partition)


NO_PARTITION_DIRS = {
    "no partition": "flights",
    "no number": "flights-x",
    "no topic": "-0",
    "a leading zero": "flights-00",
    "a plus": "flights-+1",
    "above int32": "flights-2147483648",
    "a dot as topic": ".-0",
    "two dots as topic": "..-0",
    "a topic that is too long": "t" * 250 + "-0",
    "a space": "fl ights-0",
    "digits of another script": "flights-٣",
    "a newline behind": "flights-0\n",
    "deleted": f"flights-0.{HEX}-delete",
    "ours": names.OURS,
    "nothing": "",
}


@pytest.mark.parametrize("name", NO_PARTITION_DIRS)
def test_no_partition_dir(name: str) -> None:
    assert names.parse_partition_dir(NO_PARTITION_DIRS[name]) is None


@given(TOPICS, st.integers(0, names.MAX_PARTITION), st.uuids())
def test_deleted_dirs_fit_and_are_known(topic: str, partition: int, made: uuid.UUID) -> None:
    name = names.deleted_dir(topic, partition, made.hex)
    assert len(name) <= 255
    assert name.endswith(f"-{partition}.{made.hex}-delete")
    assert name.startswith(topic[:200])
    assert names.is_deleted_dir(name)
    assert names.parse_partition_dir(name) is None


NO_DELETED_DIRS = {
    "a live one": "flights-0",
    "a live one of a topic of that name": f"flights-0.{HEX}-delete-0",
    "no id": "flights-0-delete",
    "a short id": f"flights-0.{HEX[1:]}-delete",
    "upper case": f"flights-0.{HEX.upper()}-delete",
    "no partition": f"flights.{HEX}-delete",
    "no topic": f"-0.{HEX}-delete",
    "a future replica": f"flights-0.{HEX}-future",
    "a newline behind": f"flights-0.{HEX}-delete\n",
    "a path": f"x/flights-0.{HEX}-delete",
}


@pytest.mark.parametrize("name", NO_DELETED_DIRS)
def test_no_deleted_dir(name: str) -> None:
    assert not names.is_deleted_dir(NO_DELETED_DIRS[name])


BAD_TOPICS = {
    "empty": "",
    "dot": ".",
    "two dots": "..",
    "too long": "t" * 250,
    "slash": "a/b",
    "space": "a b",
    "newline": "a\n",
    "zero byte": "a\0",
    "umlaut": "flüge",
    "star": "*",
}


@pytest.mark.parametrize("name", BAD_TOPICS)
def test_bad_topics_are_named(name: str) -> None:
    with pytest.raises(InvalidTopicError, match="1 to 249 of") as error:
        names.check_topic(BAD_TOPICS[name])
    assert repr(BAD_TOPICS[name]) in str(error.value)


def test_a_topic_is_a_str() -> None:
    with pytest.raises(InvalidTypeError, match="bytes"):
        names.check_topic(b"flights")  # type: ignore[arg-type]


def test_topic_ids_are_kafkas() -> None:
    """The first four are passed over: two that Kafka reserves, one that begins with "-", twice."""
    drawn = iter(
        [
            *(uuid.UUID(int=0), uuid.UUID(int=1)),
            *(uuid.UUID(bytes=b"\xf8" * 16), uuid.UUID(bytes=b"\xfb" + bytes(15))),
            uuid.UUID("3aacb323-e828-4e30-b9d6-b61c2b1c9627"),
        ]
    )
    assert names.new_topic_id(lambda: next(drawn)) == GOLDEN_ID
    assert names.is_topic_id(names.new_topic_id())


@given(st.uuids())
def test_metadata_comes_back(made: uuid.UUID) -> None:
    try:
        topic_id = names.new_topic_id(iter([made]).__next__)
    except StopIteration:  # one that Kafka would not draw
        return
    assert names.parse_partition_metadata(names.partition_metadata(topic_id)) == topic_id


@pytest.mark.parametrize(
    "source", [s for s in broker_partitions() if s.form == "clean" or not s.build], ids=lambda s: s.id
)
def test_brokers_metadata_comes_back_to_the_byte(source) -> None:
    data = (source.path / names.PARTITION_METADATA).read_bytes()
    assert names.partition_metadata(names.parse_partition_metadata(data)) == data


def test_metadata_may_end_with_a_newline() -> None:
    assert names.parse_partition_metadata(names.partition_metadata(GOLDEN_ID) + b"\n") == GOLDEN_ID


BAD_METADATA = {
    "empty": (b"", 1),
    "cut": (b"version: 0\n", 1),
    "version": (f"version: 1\ntopic_id: {GOLDEN_ID}".encode(), 1),
    "zeros": (bytes(40), 1),
    "more lines": (names.partition_metadata(GOLDEN_ID) + b"\n\n", 1),
    "short id": (names.partition_metadata(GOLDEN_ID[:-1]), 2),
    "long id": (names.partition_metadata(GOLDEN_ID + "AA"), 2),
    "id with bits that are not its own": (names.partition_metadata(GOLDEN_ID[:-1] + "x"), 2),
    "the id that stands for none": (names.partition_metadata("A" * 22), 2),
}


@pytest.mark.parametrize("name", BAD_METADATA)
def test_bad_metadata_is_named(name: str) -> None:
    data, line = BAD_METADATA[name]
    with pytest.raises(CorruptCheckpointError, match="somewhere") as error:
        names.parse_partition_metadata(data, "somewhere")
    assert (error.value.file, error.value.line) == ("somewhere", line)


@pytest.mark.parametrize("offset", [0, 300, (1 << 63) - 1])
@pytest.mark.parametrize("epoch", [0, 7, (1 << 31) - 1])
def test_snapshots_of_the_metadata_come_back(offset: int, epoch: int) -> None:
    name = names.metadata_snapshot(offset, epoch)
    assert len(name) == 20 + 1 + 10 + len(".checkpoint")
    for suffix in ("", ".part", ".deleted"):
        assert names.parse_metadata_snapshot(name + suffix) == (offset, epoch, ".checkpoint" + suffix)
    assert names.parse_segment_file(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "00000000000000000300-0000000007-8723.checkpoint.part": (300, 7, ".checkpoint.part"),
        "00000000000000000300-0000000007-8723.checkpoint": None,
        "00000000000000000300-7.checkpoint": None,
        "300-0000000007.checkpoint": None,
        "00000000000000000300-0000000007.checkpoint.tmp": None,
        "00000000000000000300-9999999999.checkpoint": None,
        "99999999999999999999-0000000007.checkpoint": None,
        "bootstrap.checkpoint": None,
        "x00000000000000000300-0000000007.checkpoint": None,
    }.items(),
)
def test_names_like_those_of_snapshots(name: str, expected: tuple[int, int, str] | None) -> None:
    assert names.parse_metadata_snapshot(name) == expected
