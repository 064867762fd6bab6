"""`segstore demote --standby`: a registration is taken away, in a directory and at a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli import run

import segstore
from segstore.storage.store.writer import StoreWriter


def registered(store: segstore.Store) -> None:
    """Register a standby in sync mode."""
    store.create_topic("t")
    assert isinstance(store.engine, StoreWriter)
    store.engine.primary.register("A" * 22, sync=True)


def test_of_a_directory(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        registered(store)
    assert "taken away" in run("demote", "--standby", "--store", str(store_dir)).output
    assert "no standby" in run("demote", "--standby", "--store", str(store_dir)).output
    with segstore.open(store_dir) as store:
        assert store.partition("t").append(b"a") == 0


def test_of_a_server(store: segstore.Store) -> None:
    registered(store)
    with segstore.serve(store, port=0) as server:
        ask = ("demote", "--standby", "--bootstrap", server.bootstrap_servers)
        assert "taken away" in run(*ask).output
        assert store.partition("t").append(b"a") == 0
        again = run(*ask)
        assert (again.exit_code, "not registered" in again.output + again.stderr) == (1, True)


@pytest.mark.parametrize("given", [(), ("--store", "a", "--bootstrap", "b:1")], ids=["neither", "both"])
def test_where_it_is_must_be_said(given: tuple[str, ...]) -> None:
    assert run("demote", "--standby", *given).exit_code == 2


def test_a_server_that_is_named_goes_before_the_directory_of_the_environment(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(store)
    monkeypatch.setenv("SEGSTORE_PATH", store.path)
    with segstore.serve(store, port=0) as server:
        assert "taken away" in run("demote", "--standby", "--bootstrap", server.bootstrap_servers).output
