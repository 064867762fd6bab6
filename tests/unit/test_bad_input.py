# ruff: noqa: E501 (a table reads best one case a line)
"""Promise: bad input gives one exception of segstore.errors that names the value and what is allowed, and
nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stores import Clock, tree

import segstore
from segstore import (
    ConfigError,
    InvalidArgumentError,
    InvalidTopicError,
    InvalidTypeError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StorageError,
    StoreLockedError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from segstore.storage.repair import repair

Store, Log = segstore.Store, segstore.PartitionLog
Case = tuple[type[Exception], str, Callable[[Store, Log], Any]]

NAMES = np.array([["a", "b"], ["c", "d"]])  # has neither truth nor hash

CASES: dict[str, Case] = {
    # topics
    "partition-unknown-topic": (UnknownTopicOrPartitionError, r"'nope'.*\bt\b", lambda s, t: s.partition("nope")),
    "partition-unknown": (UnknownTopicOrPartitionError, r"partition 2.*\[0, 1\]", lambda s, t: s.partition("t", 2)),
    "partition-negative": (UnknownTopicOrPartitionError, r"-1", lambda s, t: s.partition("t", -1)),
    "partition-bool": (InvalidTypeError, "int, not bool", lambda s, t: s.partition("t", True)),
    "partition-float": (InvalidTypeError, "int, not float", lambda s, t: s.partition("t", 0.0)),
    "partition-None": (InvalidTypeError, "int, not NoneType", lambda s, t: s.partition("t", None)),
    "partition-topic-list": (InvalidTypeError, "str, not list", lambda s, t: s.partition([])),
    "partition-topic-bytes": (InvalidTypeError, "str, not bytes", lambda s, t: s.partition(b"t")),
    "create-there": (TopicAlreadyExistsError, "'t'", lambda s, t: s.create_topic("t")),
    "create-space": (InvalidTopicError, "'a b'.*a-z", lambda s, t: s.create_topic("a b")),
    "create-empty": (InvalidTopicError, "1 to 249", lambda s, t: s.create_topic("")),
    "create-dots": (InvalidTopicError, r"'\.\.'", lambda s, t: s.create_topic("..")),
    "create-slash": (InvalidTopicError, "a/b", lambda s, t: s.create_topic("a/b")),
    "create-long": (InvalidTopicError, "1 to 249", lambda s, t: s.create_topic("x" * 250)),
    "create-None": (InvalidTypeError, "str, not NoneType", lambda s, t: s.create_topic(None)),
    "create-0": (InvalidArgumentError, "partitions=0.*at least 1", lambda s, t: s.create_topic("u", 0)),
    "create-float": (InvalidTypeError, "int, not float", lambda s, t: s.create_topic("u", 2.0)),
    "create-option": (ConfigError, "retention.mss.*retention.ms", lambda s, t: s.create_topic("u", 1, {"retention.mss": 1})),
    "create-option-value": (ConfigError, "segment.bytes.*13.*14", lambda s, t: s.create_topic("u", 1, {"segment.bytes": 13})),
    "create-option-bool": (ConfigError, "segment.bytes.*True", lambda s, t: s.create_topic("u", 1, {"segment.bytes": True})),
    "create-option-codec": (ConfigError, "brotli.*zstd", lambda s, t: s.create_topic("u", 1, {"compression.type": "brotli"})),
    "create-option-name": (ConfigError, "5", lambda s, t: s.create_topic("u", 1, {5: 1})),
    "create-options-list": (InvalidTypeError, "mapping.*list", lambda s, t: s.create_topic("u", 1, ["a"])),
    "create-options-array": (InvalidTypeError, "mapping.*ndarray", lambda s, t: s.create_topic("u", 1, NAMES)),
    "create-options-empty-list": (InvalidTypeError, "mapping.*list", lambda s, t: s.create_topic("u", 1, [])),
    "create-array": (InvalidTypeError, "str, not ndarray", lambda s, t: s.create_topic(NAMES)),
    "create-digits": (InvalidArgumentError, "partitions=a number of 16610 bits", lambda s, t: s.create_topic("u", 10**5000)),
    "alter-unknown-topic": (UnknownTopicOrPartitionError, "'u'", lambda s, t: s.alter_topic("u", {})),
    "alter-topic-list": (InvalidTypeError, "str, not list", lambda s, t: s.alter_topic([], {})),
    "alter-None": (InvalidTypeError, "mapping.*NoneType", lambda s, t: s.alter_topic("t", None)),
    "alter-value": (ConfigError, "retention.ms.*abc", lambda s, t: s.alter_topic("t", {"retention.ms": "abc"})),
    "alter-one-of-two": (ConfigError, "nope", lambda s, t: s.alter_topic("t", {"retention.ms": 1, "nope": 2})),
    "add-fewer": (InvalidArgumentError, r"total=1.*\[0, 1\]", lambda s, t: s.add_partitions("t", 1)),
    "add-as-many": (InvalidArgumentError, "total=2", lambda s, t: s.add_partitions("t", 2)),
    "delete-unknown": (UnknownTopicOrPartitionError, "'u'", lambda s, t: s.delete_topic("u")),
    "delete-None": (InvalidTypeError, "str, not NoneType", lambda s, t: s.delete_topic(None)),
    # append
    "append-str": (InvalidTypeError, "value is str.*bytes", lambda s, t: t.append("x")),
    "append-int": (InvalidTypeError, "value is int.*bytes", lambda s, t: t.append(5)),
    "append-key": (InvalidTypeError, "key is int.*bytes", lambda s, t: t.append(b"", key=5)),
    "append-headers": (InvalidTypeError, "headers.*int", lambda s, t: t.append(b"", headers=5)),
    "append-header-name": (InvalidTypeError, r"headers.*bytes", lambda s, t: t.append(b"", headers=[(b"a", b"")])),
    "append-header-value": (InvalidTypeError, r"headers.*\(str, str\)", lambda s, t: t.append(b"", headers=[("a", "b")])),
    "append-header-pair": (InvalidTypeError, "headers.*'ab'", lambda s, t: t.append(b"", headers=["ab"])),
    "append-header-surrogate": (InvalidArgumentError, r"headers\[0\].*'\\ud800'.*UTF-8", lambda s, t: t.append(b"", headers=[("\ud800", b"")])),
    "append-header-array": (InvalidTypeError, r"headers\[0\].*\(str, bytes or None\)", lambda s, t: t.append(b"", headers=NAMES)),
    "append-time-float": (InvalidTypeError, "timestamp.*int, not float", lambda s, t: t.append(b"", timestamp=1.5)),
    "append-time-bool": (InvalidTypeError, "timestamp.*int, not bool", lambda s, t: t.append(b"", timestamp=False)),
    "append-time-below": (InvalidArgumentError, "timestamp=-2.*-1", lambda s, t: t.append(b"", timestamp=-2)),
    "append-time-int64": (InvalidArgumentError, str(2**63), lambda s, t: t.append(b"", timestamp=2**63)),
    "append-time-after": (InvalidArgumentError, "message.timestamp.after.max.ms", lambda s, t: t.append(b"", timestamp=2**62)),
    "append-large": (RecordTooLargeError, "allowed are 10,000", lambda s, t: t.append(bytes(10_000))),
    # append_batch
    "batch-bytes": (InvalidTypeError, "bytes", lambda s, t: t.append_batch(b"abc")),
    "batch-str": (InvalidTypeError, "str", lambda s, t: t.append_batch("abc")),
    "batch-int": (InvalidTypeError, "int", lambda s, t: t.append_batch(5)),
    "batch-element": (InvalidTypeError, r"values\[1\] is int", lambda s, t: t.append_batch([b"a", 1])),
    "batch-floats": (InvalidTypeError, "float64", lambda s, t: t.append_batch(np.zeros(3))),
    "batch-keys-fewer": (InvalidArgumentError, "0 keys for 1 values", lambda s, t: t.append_batch([b"a"], keys=[])),
    "batch-headers-more": (InvalidArgumentError, "2 headers for 1 values", lambda s, t: t.append_batch([b"a"], headers=[[], []])),
    "batch-header-of-one": (InvalidTypeError, r"headers\[0\]", lambda s, t: t.append_batch([b"a"], headers=[5])),
    "batch-header-surrogate": (InvalidArgumentError, r"headers\[0\]\[0\].*'\\ud800'.*UTF-8", lambda s, t: t.append_batch([b"a"], headers=[[("\ud800", b"")]])),
    "batch-times-fewer": (InvalidArgumentError, "timestamps for 2", lambda s, t: t.append_batch([b"a", b"b"], timestamps=[1])),
    "batch-times-float": (InvalidTypeError, "timestamps", lambda s, t: t.append_batch([b"a"], timestamps=[1.5])),
    "batch-times-None": (InvalidTypeError, "timestamps", lambda s, t: t.append_batch([b"a"], timestamps=[None])),
    "batch-times-below": (InvalidArgumentError, "-7", lambda s, t: t.append_batch([b"a"], timestamps=[-7])),
    "batch-codec": (InvalidArgumentError, "'brotli'.*zstd", lambda s, t: t.append_batch([b"a"], compression="brotli")),
    "batch-codec-int": (InvalidTypeError, "str or None, not int", lambda s, t: t.append_batch([b"a"], compression=4)),
    "batch-size-0": (InvalidArgumentError, "batch_bytes=0", lambda s, t: t.append_batch([b"a"], batch_bytes=0)),
    "batch-size-float": (InvalidTypeError, "batch_bytes.*float", lambda s, t: t.append_batch([b"a"], batch_bytes=9.5)),
    "batch-large": (RecordTooLargeError, "record 2 .*allowed are 10,000", lambda s, t: t.append_batch([b"a", b"b", bytes(10_000), b"c"])),
    # read
    "read-below": (OffsetOutOfRangeError, "-1.* 0 to 0 .*ends at 1", lambda s, t: t.read(-1)),
    "read-above": (OffsetOutOfRangeError, "2.* 0 to 0 .*ends at 1", lambda s, t: t.read(2)),
    "read-far-below": (OffsetOutOfRangeError, "0 to 0 .*ends at 1", lambda s, t: t.read(-(2**70))),
    "read-far-above": (InvalidArgumentError, str(2**70), lambda s, t: t.read(2**70)),
    "read-str": (InvalidTypeError, "offset.*int, not str", lambda s, t: t.read("0")),
    "read-float": (InvalidTypeError, "offset.*int, not float", lambda s, t: t.read(0.0)),
    "read-None": (InvalidTypeError, "offset.*NoneType", lambda s, t: t.read(None)),
    "read-bytes-float": (InvalidTypeError, "max_bytes.*float", lambda s, t: t.read(0, 1e6)),
    "read-bytes-below": (InvalidArgumentError, "max_bytes=-1", lambda s, t: t.read(0, -1)),
    "read-isolation": (InvalidArgumentError, "'snapshot'.*read_committed", lambda s, t: t.read(0, isolation_level="snapshot")),
    "read-isolation-array": (InvalidArgumentError, r"isolation_level=array.*read_committed", lambda s, t: t.read(0, isolation_level=NAMES)),
    "read-crcs-None": (InvalidTypeError, "check_crcs must be True or False, not NoneType", lambda s, t: t.read(0, check_crcs=None)),
    "read-crcs-float": (InvalidTypeError, "check_crcs must be True or False, not float", lambda s, t: t.read(0, check_crcs=1.5)),
    "read-crcs-array": (InvalidTypeError, "check_crcs must be True or False, not ndarray", lambda s, t: t.read(0, check_crcs=NAMES)),
    "read-crcs-large": (InvalidArgumentError, f"check_crcs={2**40}: must be True or False", lambda s, t: t.read(0, check_crcs=2**40)),
    "time-str": (InvalidTypeError, "timestamp_ms.*str", lambda s, t: t.offset_for_time("now")),
    "time-float": (InvalidTypeError, "timestamp_ms.*float", lambda s, t: t.offset_for_time(1.0)),
    "delete-records-above": (OffsetOutOfRangeError, "2.* 0 to 0 .*ends at 1", lambda s, t: t.delete_records(2)),
    "delete-records-below": (InvalidArgumentError, "-2", lambda s, t: t.delete_records(-2)),
    "delete-records-None": (InvalidTypeError, "NoneType", lambda s, t: t.delete_records(None)),
    # open
    "open-path-int": (InvalidTypeError, "path.*int", lambda s, t: segstore.open(5)),
    "open-path-empty": (InvalidArgumentError, "path=''", lambda s, t: segstore.open("")),
    "open-path-nul": (InvalidArgumentError, "path", lambda s, t: segstore.open("a\0b")),
    "open-mode": (InvalidArgumentError, "mode='w'.*rw, r", lambda s, t: segstore.open(s.path, "w")),
    "open-mode-None": (InvalidArgumentError, "mode=None", lambda s, t: segstore.open(s.path, None)),
    "open-option": (ConfigError, "segment.bytes: a topic has this, not a store", lambda s, t: segstore.open(s.path, "r", config={"segment.bytes": 1 << 20})),
    "open-path-surrogate": (InvalidArgumentError, r"path='\\ud800'", lambda s, t: segstore.open("\ud800", mode="r")),
    "open-mode-array": (InvalidArgumentError, "mode=array.*rw, r", lambda s, t: segstore.open(s.path, NAMES)),
    "open-options-array": (InvalidTypeError, "mapping.*ndarray", lambda s, t: segstore.open(s.path, "r", config=NAMES)),
    "check-path-surrogate": (InvalidArgumentError, r"path='\\ud800'", lambda s, t: segstore.check("\ud800")),
    "repair-path-list": (InvalidTypeError, "path.*list", lambda s, t: repair([])),
    "copy-to-list": (InvalidTypeError, "target must be a str.*list", lambda s, t: segstore.copy(s.path, [])),
    "copy-to-empty": (InvalidArgumentError, "target=''", lambda s, t: segstore.copy(s.path, "")),
    "copy-to-nul": (InvalidArgumentError, "target='a.x00'", lambda s, t: segstore.copy(s.path, "a\0")),
    "copy-to-surrogate": (InvalidArgumentError, r"target='\\ud800'", lambda s, t: segstore.copy(s.path, "\ud800")),
    "close-timeout-large": (InvalidArgumentError, "timeout=10", lambda s, t: s.close(10**400)),
    "open-none-there": (StorageError, "nope", lambda s, t: segstore.open(s.path + "/nope", "r")),
    "open-a-file": (StorageError, "lock", lambda s, t: segstore.open(s.path + "/.lock")),
    "open-no-parent": (StorageError, "a/b", lambda s, t: segstore.open(s.path + "/a/b")),
    "open-locked": (StoreLockedError, "open in this process already", lambda s, t: segstore.open(s.path)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input(store_dir: Path, name: str) -> None:
    kind, message, call = CASES[name]
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", 2, {"max.message.bytes": 10_000})
        # What was asked for rightly before must not make a difference.
        log, _ = store.partition("t"), store.partition("t", 1)
        log.append(b"one")
        before = tree(store_dir)
        with pytest.raises(segstore.SegstoreError) as caught:
            call(store, log)
        assert type(caught.value) is kind
        assert re.search(message, str(caught.value)), str(caught.value)
        assert tree(store_dir) == before
        assert log.append(b"two") == 1


def test_times_below_all_records(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        assert log.offset_for_time(-1) is None
        log.append(b"", timestamp=-1)
        log.append(b"", timestamp=0)
        assert [log.offset_for_time(t) for t in (-(2**70), -(2**63), -2, -1, 0, 1)] == [0, 0, 0, 0, 1, None]
