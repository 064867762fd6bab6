"""How a directory becomes a standby: registrations that are lost, refused, or that a kill comes behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from stores import values
from waiting import PATIENCE, until

import segstore
from segstore.errors import BrokerError, CorruptCheckpointError, DisconnectedError
from segstore.replica_fetcher.primary import PrimaryClient
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")

LIMIT = PATIENCE * 1000
QUICK = {"metadata.max.age.ms": 50, "fetch.max.wait.ms": 50, "reconnect.backoff.ms": 5}
STATES = ["new", "held", "returns"]


def followed(broker: Broker, directory: Path, **options: Any) -> segstore.Standby:
    return segstore.follow(broker.bootstrap_servers, directory, config=QUICK, **options)


@pytest.fixture
def broker(tmp_path: Path, state: str, store_dir: Path) -> Any:
    """A primary, and, by `state`, what is to follow it in `store_dir`."""
    first = tmp_path / "p"
    with Broker(first, topics=["t"]) as broker:
        broker.store.partition("t").append(b"1")
        if state == "new":
            yield broker
            return
        with followed(broker, store_dir if state == "held" else tmp_path / "q") as standby:
            assert standby.wait_caught_up(LIMIT)
        if state == "held":
            yield broker
            return
    segstore.promote(tmp_path / "q", "dead").close()
    first.rename(store_dir)
    with Broker(tmp_path / "q") as broker:
        yield broker


def after(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first registration be made, and its answer be this error."""
    register: Callable[[PrimaryClient], int] = PrimaryClient.register
    left = [error]

    def registering(self: PrimaryClient) -> int:
        made = register(self)
        if left:
            raise left.pop()
        return made

    monkeypatch.setattr(PrimaryClient, "register", registering)


@pytest.mark.parametrize("state", STATES)
def test_a_registration_whose_answer_is_lost_is_made_again(
    broker: Broker, store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(DisconnectedError("lost"), monkeypatch)
    with followed(broker, store_dir) as standby:
        assert standby.wait_caught_up(LIMIT)
        broker.store.partition("t").append(b"2")
        until(lambda: values(standby.store.partition("t")) == [b"1", b"2"])


class Killed(BaseException):
    """The process ended here."""


def killed(name: str, args: tuple[Any, ...]) -> None:
    """End the process, if it is the caller of `follow`: behind that the standby's own thread goes on."""
    if threading.current_thread() is threading.main_thread():
        raise Killed


@pytest.mark.parametrize("state", STATES)
def test_a_process_that_ends_behind_its_registration_follows_again(
    broker: Broker, store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The primary knows it by the id of its directory, which is on disk before."""
    after(Killed(), monkeypatch)
    with pytest.raises(Killed):
        followed(broker, store_dir)
    with followed(broker, store_dir) as standby:
        assert standby.wait_caught_up(LIMIT)
        assert values(standby.store.partition("t")) == [b"1"]


@pytest.mark.parametrize("name", ["sync_dir", "mkdir", "pwrite", "sync", "rename", "unlink"])
def test_a_process_that_ends_anywhere_at_its_first_start_follows_again(tmp_path: Path, name: str) -> None:
    with Broker(tmp_path / "p", topics=["t"]) as broker:
        broker.store.partition("t").append(b"1")
        for nth in range(1, 8):
            directory = tmp_path / str(nth)
            with suppress(Killed):
                followed(broker, directory, files=FailingFiles([name], killed, nth)).close()
            with followed(broker, directory) as standby:
                assert standby.wait_caught_up(LIMIT)
                assert values(standby.store.partition("t")) == [b"1"]
            assert segstore.check(directory) == []
            broker.store.engine.primary.unregister()  # type: ignore[union-attr]


@pytest.mark.parametrize("state", ["new", "returns"])
def test_a_directory_that_is_refused_is_what_it_was(
    broker: Broker, store_dir: Path, tmp_path: Path, state: str
) -> None:
    with followed(broker, tmp_path / "other") as other:
        assert other.wait_caught_up(LIMIT)
        with pytest.raises(BrokerError, match="has another standby"):
            followed(broker, store_dir)
    if state == "new":
        assert not store_dir.exists()
        store_dir.mkdir()
        return
    assert not (store_dir / ".segstore" / "role").exists()
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [b"1"]


@pytest.mark.parametrize("state", ["returns"])
def test_an_old_primary_whose_leader_epochs_are_damaged_is_refused(broker: Broker, store_dir: Path) -> None:
    """How far it has led is not known; nothing is changed."""
    epochs = store_dir / "t-0" / "leader-epoch-checkpoint"
    sound = epochs.read_bytes()
    epochs.write_bytes(b"0\n1\nno epoch\n")
    with pytest.raises(CorruptCheckpointError, match="leader-epoch-checkpoint"):
        followed(broker, store_dir)
    assert not (store_dir / ".segstore" / "role").exists()
    epochs.write_bytes(sound)
    with followed(broker, store_dir) as standby:
        assert standby.wait_caught_up(LIMIT)
