"""Promise: what can't be shared, and what a guest of a shared store can't do, is refused by an error that
says what to do, and nothing was written.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stores import tree
from waiting import PATIENCE

import segstore
from segstore.config import StoreConfig
from segstore.coordinator.credentials import scram_credentials
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.quotas import quotas
from segstore.errors import InvalidRequestError
from segstore.files import Files
from segstore.filetree import file_tree
from segstore.storage.meta.role import ROLE, Role
from segstore.storage.meta.standby_registration import REGISTRATION, StandbyRegistration
from segstore.storage.shared.refused_calls import refused_in_guest
from segstore.storage.staging.seal import adopt

# --- arguments ------------------------------------------------------------------------------------

ARGUMENTS: dict[str, tuple[dict[str, Any], type[segstore.SegstoreError], str]] = {
    "another word": ({"shared": "host"}, segstore.InvalidArgumentError, 'False, True or "guest"'),
    "no word": ({"shared": ""}, segstore.InvalidArgumentError, 'False, True or "guest"'),
    "a number": ({"shared": 1}, segstore.InvalidTypeError, "not int"),
    "nothing": ({"shared": None}, segstore.InvalidTypeError, "not NoneType"),
    "a member that reads": ({"mode": "r", "shared": True}, segstore.InvalidArgumentError, 'mode="r"'),
    "a guest that reads": ({"mode": "r", "shared": "guest"}, segstore.InvalidArgumentError, 'mode="r"'),
    "another mode": ({"mode": "x", "shared": True}, segstore.InvalidArgumentError, "one of rw"),
    "a time that is none": ({"shared": True, "timeout": -1}, segstore.InvalidArgumentError, "timeout"),
    "a setting that is none": (
        {"shared": True, "config": {"shared.members": 65}},
        segstore.ConfigError,
        "64",
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_are_refused(name: str, store_dir: Path) -> None:
    arguments, kind, told = ARGUMENTS[name]
    with pytest.raises(kind, match=told):
        segstore.open(store_dir, **arguments)
    assert not store_dir.exists()


def test_settings_of_sharing() -> None:
    config = StoreConfig()
    assert (config.shared_stopped_ms, config.shared_answer_ms, config.shared_members) == (5_000, 30_000, 64)


# --- stores ---------------------------------------------------------------------------------------


def _replicated(path: Path) -> None:
    segstore.open_replicated([path, path.with_name("other"), path.with_name("third")]).close()


def _followed(kind: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        segstore.open(path).close()
        mode, directory = ("sync", "A" * 22) if kind == "standby" else ("", "")
        role = Role(
            kind, "C" * 22, "there:9092", ("t",), "read_uncommitted", mode=mode, directory_id=directory
        )
        ROLE.write(Files(), str(path), role)

    return make


def _with_standby(sync: bool) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        segstore.open(path).close()
        REGISTRATION.write(Files(), str(path), StandbyRegistration("A" * 22, sync, 7))

    return make


STORES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a directory of a replicated store": (_replicated, r"segstore\.open_replicated"),
    "a mirror": (_followed("mirror"), "segstore end-mirror"),
    "a standby": (_followed("standby"), "segstore promote"),
    "a primary whose standby is in sync mode": (_with_standby(sync=True), "segstore demote --standby"),
}


@pytest.mark.parametrize("shared", [True, "guest"])
@pytest.mark.parametrize("name", STORES)
def test_stores_that_can_not_be_shared(name: str, shared: Any, store_dir: Path) -> None:
    make, advice = STORES[name]
    make(store_dir)
    before = tree(store_dir)
    with pytest.raises(segstore.InvalidArgumentError, match=advice):
        segstore.open(store_dir, shared=shared)
    assert tree(store_dir) == before


@pytest.mark.parametrize("shared", [True, "guest"])
def test_another_platform_can_not_share(
    shared: Any, store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segstore.storage.store.shareable.sys", SimpleNamespace(platform="darwin"))
    with pytest.raises(segstore.NotShareableError, match=r"not on darwin: open it with shared=False"):
        segstore.open(store_dir, shared=shared)
    assert not store_dir.exists()


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_shared_store_gets_no_standby_in_sync_mode(sync: bool, store_dir: Path) -> None:
    with segstore.open(store_dir) as store, Files().lock(store_dir / ".segstore" / "members"):
        primary: Any = store.engine.primary  # type: ignore[union-attr]
        if sync:
            with pytest.raises(InvalidRequestError, match="it may follow in async mode"):
                primary.register("A" * 22, sync)
        else:
            primary.register("A" * 22, sync)
        assert primary.registration.is_there == (not sync)
    (store_dir / ".segstore" / "members").unlink()


# --- guests ---------------------------------------------------------------------------------------


def test_a_guest_is_told_who_does_what_it_has_asked_for() -> None:
    error = refused_in_guest("create_topic()")
    assert isinstance(error, segstore.IllegalStateError)
    assert str(error).startswith("create_topic(): this process is a guest")
    assert "segstore serve --shared" in str(error)
    assert not error.retriable


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_of_the_host_keeps_what_it_tells(again: Callable[[Any], Any]) -> None:
    error = again(segstore.HostUnavailableError("events", 4711, True))
    assert (error.path, error.pid, error.alive) == ("events", 4711, True)
    assert "process 4711, is alive, and does not answer: nothing was appended" in str(error)
    assert error.retriable
    assert "segstore serve --shared" in str(segstore.HostUnavailableError("events", 0, False))
    assert "is gone" in str(segstore.HostUnavailableError("events", 4711, False))


OF_THE_HOST: dict[str, Callable[[segstore.Store], object]] = {
    "a producer with a transactional id": lambda store: segstore.Producer(store, transactional_id="x"),
    "a producer with an id": lambda store: segstore.Producer(store, enable_idempotence=True),
    "a consumer in a group": lambda store: segstore.Consumer(store, "t", group_id="g"),
    "a consumer in a group, by KIP-848": lambda store: segstore.Consumer(
        store, "t", group_id="g", group_protocol="consumer"
    ),
    "a reset of a group": lambda store: segstore.Groups(store).reset("g", segstore.Reset.to_latest(), ["t"]),
    "a group's end": lambda store: segstore.Groups(store).delete("g"),
    "a new topic": lambda store: store.create_topic("new"),
    "a new topic that may be there": lambda store: store.ensure_topic("new"),
    "a setting of a topic": lambda store: store.alter_topic("t", {"retention.ms": 1}),
    "partitions": lambda store: store.add_partitions("t", 3),
    "a topic's end": lambda store: store.delete_topic("t"),
    "records": lambda store: store.partition("t").delete_records(0),
    "a sweep": lambda store: store.sweep(),
    "an upgrade": lambda store: store.upgrade(),
    "staged records": lambda store: adopt(store, "id", []),
    "a tree of files": lambda store: file_tree(store, "files"),
    "a quota": lambda store: quotas(store).alter("c", {"producer_byte_rate": 1000}),
    "a credential": lambda store: scram_credentials(store).alter({}),
    "a setting of a group": lambda store: group_settings(store).alter("g", {}),
    "a server": lambda store: segstore.serve(store, port=0),
}


@pytest.fixture
def guest(store_dir: Path) -> Iterator[segstore.Store]:
    """A guest of a store of one topic."""
    with segstore.open(store_dir, shared=True) as host:
        host.create_topic("t", 2)
        with segstore.open(store_dir, shared="guest", timeout=PATIENCE) as guest:
            yield guest


@pytest.mark.parametrize("name", OF_THE_HOST)
def test_a_guest_refuses_what_is_the_hosts(name: str, guest: segstore.Store) -> None:
    topics = guest.topics()
    with pytest.raises(segstore.IllegalStateError, match="this process is a guest of the store"):
        OF_THE_HOST[name](guest)
    assert guest.topics() == topics


def test_a_guest_has_clients_without_ids_and_groups(guest: segstore.Store) -> None:
    with segstore.Producer(guest) as producer:
        assert not producer.config.enable_idempotence
        assert producer.send("t", b"sent", partition=0).get(PATIENCE).offset == 0
    with segstore.Consumer(guest, "t") as consumer:
        assert consumer.partitions_for_topic("t") == {0, 1}
    guest.flush()
    assert guest.ensure_topic("t", 2).partitions == 2
    with pytest.raises(segstore.TopicMismatchError, match="partitions=2, not 3"):
        guest.ensure_topic("t", 3)
    with pytest.raises(segstore.TopicAlreadyExistsError):
        guest.create_topic("t")
    assert segstore.Groups(guest).list() == ()
    assert quotas(guest).describe() == {}
