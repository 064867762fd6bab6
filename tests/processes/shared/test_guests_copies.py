"""Promise: a copy of a store that is shared is a store of its own: nobody takes its shared file for one of
living members, whoever has made the copy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_members import MemberProcess, members

import segstore

pytestmark = pytest.mark.kind("members of a shared store")


def by_hand(path: Path, copy: Path) -> None:
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("host"))  # a socket


def by_links(path: Path, copy: Path) -> None:
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("host"))
    (copy / ".segstore/shared").unlink()
    os.link(path / ".segstore/shared", copy / ".segstore/shared")


def by_call(path: Path, copy: Path) -> None:
    segstore.copy(path, copy)


@pytest.mark.parametrize("make", [by_hand, by_links, by_call], ids=["by hand", "by links", "by call"])
@pytest.mark.parametrize("then", ["plain", "shared"])
def test_a_copy_of_a_live_store(tmp_path: Path, make: Callable[[Path, Path], None], then: str) -> None:
    path, copy = tmp_path / "s", tmp_path / "copy"
    with members(path, True, "guest") as (host, guest):
        for each in (host, guest, host):
            each.append("x")
        make(path, copy)
        assert guest.append("on") == 3
        with segstore.open(copy, mode="r") as early:
            assert early.partition("t").end_offset == 3
            with segstore.open(copy, shared=then == "shared") as store:
                assert store.role == {"plain": "writer", "shared": "host"}[then]
                assert store.partition("t").append(b"y") == 3
                with segstore.open(copy, mode="r") as late:
                    assert [r.value for r in late.partition("t")] == [b"x", b"x", b"x", b"y"]
                if make is not by_links:  # by links it follows the other store
                    assert [r.value for r in early.partition("t")] == [b"x", b"x", b"x", b"y"]
        assert segstore.check(copy) == []
        with MemberProcess(copy, True).opened() as other:
            assert other.append("z") == 4
            assert len(other.run("store.members()")) == 1
        assert guest.append("on") == 4
    assert segstore.check(path) == []


def test_a_plain_open_behind_members_that_were_all_killed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with segstore.open(path) as store:
        store.create_topic("t")
    with MemberProcess(path, True).opened() as host, MemberProcess(path).opened() as guest:
        assert [host.append("x"), guest.append("x")] == [0, 1]
        with segstore.open(path, mode="r") as reader:
            log = reader.partition("t")
            guest.kill()
            host.kill()
            assert log.end_offset == 2
            with segstore.open(path) as store:
                assert store.recovered == ()
                assert store.partition("t").append(b"y") == 2
                assert [r.value for r in log] == [b"x", b"x", b"y"]
            assert log.end_offset == 3
            with segstore.open(path, shared=True) as store:
                assert store.partition("t").append(b"z") == 3
                assert log.end_offset == 4
    assert segstore.check(path) == []
