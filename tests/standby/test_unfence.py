"""The operator lifts a fence: the store leads again, above the epoch of the fence, and has no standby."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli import run
from faults import FailingFiles
from stores import tree

import segstore
from segstore.errors import DemotedError, InvalidArgumentError, StorageError, StoreLockedError
from segstore.files import Files
from segstore.integers import INT32_MAX
from segstore.storage.meta.fence import FENCE, Fence
from segstore.storage.meta.standby_registration import REGISTRATION

pytestmark = pytest.mark.kind("mirrors")

STANDBY = "A" * 22


def fenced(path: Path, epoch: int, *, sync: bool = True) -> None:
    """Make a store of three records, whose standby has fenced it."""
    with segstore.open(path) as store:
        store.create_topic("t", partitions=2)
        store.partition("t").append_batch([b"a", b"b", b"c"])
        primary: Any = store.engine.primary  # type: ignore[union-attr]
        primary.register(STANDBY, sync)
        primary.demote(Fence(epoch, 2, STANDBY, 0, "it was promoted"))


@pytest.mark.parametrize(
    ("epoch", "leads"),
    [pytest.param(7, 8, id="of a promotion"), pytest.param(INT32_MAX, 1, id="the last one there is")],
)
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_the_store_leads_again(store_dir: Path, epoch: int, leads: int, sync: bool) -> None:
    fenced(store_dir, epoch, sync=sync)
    before = REGISTRATION.read(Files(), str(store_dir))
    with pytest.raises(DemotedError, match="segstore unfence"):
        segstore.open(store_dir)
    with segstore.unfence(store_dir) as store:
        log = store.partition("t")
        assert (log.leader_epoch, log.append(b"d")) == (leads, 3)
        assert store.partition("t", 1).leader_epoch == leads
        assert [each.value for each in log.read(0)] == [b"a", b"b", b"c", b"d"]
    held = REGISTRATION.read(Files(), str(store_dir))
    assert before is not None
    assert held is not None
    assert (held.is_there, held.broker_epoch) == (False, before.broker_epoch)
    with segstore.open(store_dir) as store:
        assert store.partition("t").append(b"e") == 4


def test_a_disk_that_refuses_a_call_leaves_the_fence_or_all_done(store_dir: Path, tmp_path: Path) -> None:
    """Each call that changes something fails once; the next try, or the next open, goes on."""
    fenced(store_dir, 7)
    nth = 0
    while True:
        nth += 1
        path = tmp_path / str(nth)
        shutil.copytree(store_dir, path)
        files = FailingFiles({"pwrite", "rename", "unlink", "fsync"}, OSError(errno.EIO, "I/O error"), nth)
        with suppress(StorageError):
            segstore.unfence(path, files=files).close()
        is_fenced = FENCE.read(Files(), str(path)) is not None
        with segstore.unfence(path) if is_fenced else segstore.open(path) as store:
            assert store.partition("t").leader_epoch > 7
            assert store.partition("t").append(b"d") == 3
        if not files.hits:
            break
    assert nth > 5


def test_what_has_no_fence_is_left_alone(store_dir: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
    for path in (store_dir, tmp_path / "nothing"):
        with pytest.raises(InvalidArgumentError, match="was not demoted"):
            segstore.unfence(path)
    assert not (tmp_path / "nothing").exists()


def test_an_old_primary_that_follows_by_now_is_left_alone(store_dir: Path, tmp_path: Path) -> None:
    """Its fence is still there; nobody is asked, and the error names the command that makes it lead."""
    with segstore.open(store_dir) as store, segstore.serve(store, port=0) as server:
        store.create_topic("t")
        with segstore.follow(server.bootstrap_servers, tmp_path / "standby") as standby:
            standby.promote("reachable").close()
    with segstore.open(tmp_path / "standby") as store, segstore.serve(store, port=0) as server:
        segstore.follow(server.bootstrap_servers, store_dir).close()
    assert FENCE.read(Files(), str(store_dir)) is not None
    before = tree(store_dir)
    for told in (run("unfence", store_dir), run("unfence", store_dir, "--yes")):
        assert told.exit_code == 1
        assert "is a standby" in told.stderr
        assert "`segstore promote`" in told.stderr
    assert tree(store_dir) == before


def test_a_store_that_a_process_has_open(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        primary: Any = store.engine.primary  # type: ignore[union-attr]
        primary.register(STANDBY, False)
        primary.demote(Fence(7, 2, STANDBY, 0, "it was promoted"))
        with pytest.raises(StoreLockedError):
            segstore.unfence(store_dir)
        assert FENCE.read(Files(), str(store_dir)) is not None


def test_the_standby_of_a_fence_that_was_lifted_follows_anew(store_dir: Path, tmp_path: Path) -> None:
    """It was promoted by mistake, and nothing was written there: as an old primary it comes back."""
    with segstore.open(store_dir) as store, segstore.serve(store, port=0) as server:
        store.create_topic("t")
        store.partition("t").append(b"a")
        with segstore.follow(server.bootstrap_servers, tmp_path / "standby") as standby:
            assert standby.wait_caught_up(60_000)
            standby.promote("reachable").close()
        with pytest.raises(DemotedError):
            store.partition("t").append(b"b")
    with segstore.unfence(store_dir) as store, segstore.serve(store, port=0) as server:
        assert store.partition("t").append(b"c") == 1
        with segstore.follow(server.bootstrap_servers, tmp_path / "standby") as standby:
            assert standby.wait_caught_up(60_000)
            assert [each.value for each in standby.store.partition("t").read(0)] == [b"a", b"c"]


def test_the_command(store_dir: Path) -> None:
    fenced(store_dir, 7)
    assert run("unfence", store_dir).exit_code == 2  # nobody can be asked
    assert FENCE.read(Files(), str(store_dir)) is not None
    done = run("unfence", store_dir, "--yes")
    assert (done.exit_code, done.stdout) == (0, f"{store_dir} leads, with 1 topic, and has no standby\n")
    again = run("unfence", store_dir, "--yes")
    assert again.exit_code == 1
    assert "was not demoted" in again.stderr
