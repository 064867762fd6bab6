"""Why a server is not ready: a line of /readyz for each reason, and it is ready again once that has gone."""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from faults import FailingFiles
from replicated_stores import Directories
from scrapes import Got, get, scrape, value
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.storage import full_disk

FOR_EVER = 1 << 30


def unready(server: segstore.Server) -> Got:
    """Wait until a server is not ready; it is healthy all the same."""
    got = until(lambda: found if (found := get(server.http, "/readyz")).status == 503 else None)
    assert get(server.http, "/healthz").body == "ok\n"
    return got


def await_ready(server: segstore.Server) -> None:
    until(lambda: get(server.http, "/readyz").body == "ok\n")


def test_a_full_disk(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disk, "LOOK", 0.01)
    files = FailingFiles(
        ("pwrite", "pwritev", "allocate"), OSError(errno.ENOSPC, "No space left on device"), nth=0
    )
    with segstore.open(store_dir, files=files) as store, segstore.serve(store, port=0, http="0") as server:
        store.create_topic("t")
        store.partition("t").append(b"v")
        files.arm(1, FOR_EVER)
        with pytest.raises(errors.StorageError):
            store.partition("t").append_batch([b"v" * 100_000] * 20)
        told = unready(server).body
        assert told.endswith(": No space left on device: appends fail until there is room\n")
        assert str(store_dir) in told
        until(lambda: value(scrape(server.http), "segstore_ready") == 0.0)
        files.arm(0, 0)
        await_ready(server)


def test_a_lease_that_is_not_held(store_dir: Path) -> None:
    token: list[int | None] = [None]
    with (
        segstore.open(store_dir) as store,
        segstore.serve(store, port=0, http="0", lease=lambda: token[0], lease_interval_ms=10) as server,
    ):
        assert "its lease is not held" in unready(server).body
        token[0] = 7
        await_ready(server)


def test_a_log_whose_sync_has_failed(store_dir: Path) -> None:
    files = FailingFiles(("sync",), OSError(errno.EIO, "Input/output error"), nth=0)
    store = segstore.open(store_dir, files=files)
    with segstore.serve(store, port=0, http="0") as server:
        store.create_topic("t")
        store.partition("t").append(b"v")
        files.arm(1, FOR_EVER)
        with pytest.raises(errors.StorageError):
            store.partition("t").flush()
        told = unready(server).body
        assert told == f"a sync has failed, so no append is taken before a new open: {store_dir / 't-0'}\n"
        files.arm(0, 0)
    with suppress(errors.StorageError):
        store.close()


def test_a_store_that_is_closed_and_a_server_that_ends(store_dir: Path) -> None:
    goes_on, within = threading.Event(), threading.Event()

    def hold() -> None:
        within.set()
        goes_on.wait(PATIENCE)

    with segstore.open(store_dir) as store, segstore.serve(store, port=0, http="0") as server:
        server.node.loop.work(hold, lambda _: None)
        assert within.wait(PATIENCE)
        closing = threading.Thread(target=server.close)
        closing.start()
        try:
            assert unready(server).body == "it takes no more connections\n"
        finally:
            goes_on.set()
            closing.join(PATIENCE)


def test_partitions_of_replicas_that_nobody_leads(tmp_path: Path) -> None:
    three = Directories(tmp_path, 3)
    three.judged = False
    try:
        store = three.open()
        with segstore.serve(store, port=0, http="0") as server:
            store.create_topic("t", 3, replication_factor=1)
            store.flush()
            await_ready(server)
            (away,) = [p for p in range(3) if store.describe_partition("t", p).replicas == (2,)]
            three.files.fail(three.paths[2])
            assert unready(server).body == f"nobody leads: t-{away}\n"
            found = until(
                lambda: (
                    found
                    if value(found := scrape(server.http), "segstore_replication_offline_partitions") == 1.0
                    else None
                )
            )
            assert value(found, "segstore_replication_offline_replicas") == 1.0
            assert value(found, "segstore_replication_under_replicated_partitions") == 1.0
    finally:
        three.close()
