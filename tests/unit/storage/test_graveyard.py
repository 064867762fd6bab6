"""`.deleted` files: those that an open finds stay for file.delete.delay.ms from when they got the name, over
closes and kills; those of this process go at a clean close.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest
from stores import START_MS, Clock, killed, values

import segstore
from segstore.files import Files
from segstore.storage.copy import copy
from segstore.storage.repair import repair

DELAY = 60_000
QUIET = {"log.cleaner.threads": 0, "log.retention.check.interval.ms": 2**62}


def left_by_a_kill(tmp_path: Path, target: Path) -> list[bytes | None]:
    """A store whose retention was killed when segments were `.deleted`, at START_MS: what is read of it."""
    live, clock = tmp_path / "live", Clock()
    settings = {"segment.bytes": 500, "file.delete.delay.ms": DELAY, "retention.bytes": 1000}
    with segstore.open(live, config=QUIET, clock=clock) as store:
        store.create_topic("t", config=settings)
        for i in range(30):
            store.partition("t").append(b"value %d" % i * 5)
        store.sweep()
        held = values(store.partition("t"))
        killed(live, target)
    assert waiting(target)
    assert not waiting(live)  # a clean close removes what this process let go
    return held


def waiting(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("t-0/*.deleted"))


def opened(root: Path, now: int) -> list[bytes | None]:
    with segstore.open(root, config=QUIET, clock=Clock(now)) as store:
        return values(store.partition("t"))


def test_found_files_stay_over_closes_until_their_time(store_dir: Path, tmp_path: Path) -> None:
    held = left_by_a_kill(tmp_path, store_dir)
    there = waiting(store_dir)
    for later in (0, 1, DELAY // 2, DELAY - 1):
        assert opened(store_dir, START_MS + later) == held
        assert waiting(store_dir) == there
        assert segstore.check(store_dir) == []
    assert opened(store_dir, START_MS + DELAY) == held
    assert waiting(store_dir) == []


def test_found_files_go_in_a_store_that_stays_open(store_dir: Path, tmp_path: Path) -> None:
    left_by_a_kill(tmp_path, store_dir)
    clock = Clock(START_MS + DELAY // 2)
    with segstore.open(store_dir, config=QUIET, clock=clock) as store:
        store.partition("t")
        clock.now = START_MS + DELAY - 1
        store.sweep()
        assert waiting(store_dir)
        clock.now += 1
        store.sweep()
        assert not waiting(store_dir)


def test_without_a_delay_found_files_go_at_once(store_dir: Path, tmp_path: Path) -> None:
    left_by_a_kill(tmp_path, store_dir)
    with segstore.open(store_dir, config=QUIET, clock=Clock()) as store:
        store.alter_topic("t", {"file.delete.delay.ms": 0})
    with segstore.open(store_dir, config=QUIET, clock=Clock()) as store:
        store.partition("t")
        assert not waiting(store_dir)


def test_a_clock_that_is_set_back_lets_files_wait_for_their_delay_once_more(
    store_dir: Path, tmp_path: Path
) -> None:
    held = left_by_a_kill(tmp_path, store_dir)
    clock = Clock(START_MS - 1_000_000)
    with segstore.open(store_dir, config=QUIET, clock=clock) as store:
        assert values(store.partition("t")) == held
        clock.now += DELAY - 1
        store.sweep()
        assert waiting(store_dir)
        clock.now += 1
        store.sweep()
        assert not waiting(store_dir)


def test_check_repair_and_mode_r_leave_what_waits(store_dir: Path, tmp_path: Path) -> None:
    held = left_by_a_kill(tmp_path, store_dir)
    opened(store_dir, START_MS)
    there = waiting(store_dir)
    for path in (store_dir / "t-0").glob("*.deleted"):
        now = path.stat().st_atime_ns
        os.utime(path, ns=(now, 2**62))  # repair looks at the machine's clock
    with segstore.open(store_dir, mode="r") as store:
        assert values(store.partition("t")) == held
    assert segstore.check(store_dir) == []
    assert repair(store_dir) == []
    assert waiting(store_dir) == there


def test_a_copy_has_none_of_them(store_dir: Path, tmp_path: Path) -> None:
    held = left_by_a_kill(tmp_path, tmp_path / "source")
    copy(tmp_path / "source", store_dir)
    assert waiting(tmp_path / "source")
    assert not waiting(store_dir)
    assert opened(store_dir, START_MS) == held


def test_a_topic_may_be_deleted_while_found_files_wait(store_dir: Path, tmp_path: Path) -> None:
    left_by_a_kill(tmp_path, store_dir)
    clock = Clock()
    with segstore.open(store_dir, config=QUIET, clock=clock) as store:
        store.partition("t")
        store.delete_topic("t")
        clock.now += DELAY
        assert store.sweep() == ()
    assert not list(store_dir.rglob("*.deleted"))


def test_what_cannot_be_removed_keeps_no_partition_from_being_opened(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = left_by_a_kill(tmp_path, store_dir)
    there, unlink = waiting(store_dir), Files.unlink

    def refuse(files: Files, path: str) -> None:
        if os.fspath(path).endswith(".deleted"):
            raise OSError(errno.EACCES, "Permission denied", path)
        unlink(files, path)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "segstore"):
        patch.setattr(Files, "unlink", refuse)
        assert opened(store_dir, START_MS + DELAY) == held
    assert "deleted segments could not be removed" in caplog.text
    assert waiting(store_dir) == there
    assert opened(store_dir, START_MS + DELAY) == held
    assert waiting(store_dir) == []
