"""What a mirror refuses: writes of others, directories, bad input, topics that it may not read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from mirrors import directory as directory
from mirrors import mirror, mirrored
from waiting import until

import segstore
from segstore.errors import (
    AuthenticationFailedError,
    ConfigError,
    CorruptCheckpointError,
    DisconnectedError,
    InvalidArgumentError,
    InvalidTopicError,
    InvalidTypeError,
    NotLeaderOrFollowerError,
    ReadOnlyError,
    SegstoreError,
    StaleDirectoryError,
    StoreLockedError,
)
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")


def test_nothing_else_is_written_to_a_mirror(directory: Path) -> None:
    with Broker(topics=["a"]) as broker, mirrored(broker, directory) as running:
        for refused in (
            lambda: running.store.create_topic("b"),
            lambda: running.store.alter_topic("a", {"retention.ms": 1}),
            lambda: running.store.add_partitions("a", 2),
            lambda: running.store.delete_topic("a"),
        ):
            with pytest.raises(ReadOnlyError, match="this store is a mirror"):
                refused()
        with pytest.raises(NotLeaderOrFollowerError):
            running.store.partition("a").append(b"x")
        with pytest.raises(StoreLockedError):
            mirror(broker, directory)
        assert running.store.partition("a").end_offset == 0


@pytest.mark.parametrize("left", [[".lock"], [".lock", ".segstore/"], [".lock", ".segstore/role.tmp"]])
def test_a_first_start_that_was_killed_leaves_a_new_directory(directory: Path, left: list[str]) -> None:
    """It was killed, or the power was cut, before the role was there."""
    for name in left:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).mkdir() if name.endswith("/") else (directory / name).write_bytes(b"")
    with Broker(topics=["a"]) as broker, mirrored(broker, directory) as running:
        assert list(running.store.topics()) == ["a"]


def test_directories_that_are_refused(directory: Path, tmp_path: Path) -> None:
    with Broker(topics=["a"]) as broker, Broker() as another:
        with mirrored(broker, directory):
            pass
        with pytest.raises(StaleDirectoryError, match="mirrors cluster"):
            mirror(another, directory)
        own = tmp_path / "own"
        segstore.open(own).close()
        with pytest.raises(InvalidArgumentError, match="is not empty, and no mirror"):
            mirror(broker, own)
        (directory / ".segstore" / "role").write_bytes(b"damaged")
        for opened in (lambda: mirror(broker, directory), lambda: segstore.open(directory)):
            with pytest.raises(CorruptCheckpointError, match="no role"):
                opened()
        assert len(segstore.check(directory)) == 1
        shutil.rmtree(directory)
    assert [path.name for path in own.iterdir() if "role" in path.name] == []


BAD: dict[str, tuple[dict[str, Any], type[SegstoreError], str]] = {
    "no topics": ({"topics": []}, InvalidArgumentError, "at least one name"),
    "a pattern": ({"topics": "a("}, InvalidArgumentError, "no regular expression"),
    "an internal topic": ({"topics": ["__consumer_offsets"]}, InvalidTopicError, "is internal"),
    "a long name": ({"topics": ["a" * 300]}, InvalidTopicError, "aaa"),
    "topics of another type": ({"topics": 7}, InvalidTypeError, "int"),
    "one of another type": ({"topics": [b"a"]}, InvalidTypeError, "bytes"),
    "an isolation": ({"isolation": "serializable"}, InvalidArgumentError, "uncommitted"),
    "recreated": ({"recreated": "mix"}, InvalidArgumentError, "keep"),
    "a setting": ({"config": {"fetch.max.byte": 1}}, ConfigError, "fetch.max.bytes"),
    "a setting of the store": ({"store_config": {"x": 1}}, ConfigError, "x"),
    "an address": ({"bootstrap": "here"}, InvalidArgumentError, "HOST:PORT"),
    "nobody": ({"bootstrap": "127.0.0.1:1"}, DisconnectedError, "127.0.0.1:1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_makes_nothing(name: str, tmp_path: Path) -> None:
    given, kind, told = BAD[name]
    target = tmp_path / "mirror"
    arguments = {"bootstrap": "127.0.0.1:1", "directory": target, "topics": "a", **given}
    with pytest.raises(kind) as caught:
        segstore.mirror(**arguments)
    assert told in str(caught.value)
    assert not target.exists()


def test_a_consumer_s_rights_are_enough_and_what_it_may_not_read_is_told(
    directory: Path, tmp_path: Path
) -> None:
    security = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_users": {"alice": "secret"},
        "allow": ["User:alice: read topic open; read group g"],
        "super_users": "User:root",
    }
    client = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": "secret",
        "sync.group.offsets.enabled": True,
    }
    with Broker(topics=["open", "closed"], **security) as broker:
        broker.store.partition("open").append(b"x")
        with mirror(broker, directory, ["open", "closed"], config=client) as running:
            until(lambda: running.partitions() and running.store.partition("open").end_offset == 1)
            assert "TOPIC_AUTHORIZATION_FAILED" in running.problems["closed"]
            assert list(running.store.topics()) == ["open"]
        with pytest.raises(AuthenticationFailedError):
            mirror(broker, tmp_path / "no", config={**client, "sasl.password": "wrong"})
