"""The demo's part with two machines: a primary is killed, its hot standby is promoted, the old primary is
started as a standby of the new primary, and a mirror fetches as an ordinary consumer does.

On disk: three directories. Threads: one, and the threads of the server, the standby and the mirror. The
primary is a child process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import segstore
from segstore.demo.primary_program import TOPIC
from segstore.demo.replicas import quiet
from segstore.demo.screen import Screen
from segstore.errors import StorageError

_PROGRAM = os.path.join(os.path.dirname(__file__), "primary_program.py")
_LONGEST_MS = 60_000.0
PRIMARY, STANDBY, MIRROR = "primary", "standby", "mirror"


def standbys(screen: Screen, base: str, records: int) -> None:
    """Run this part in directories below `base`, which is created; the primary is killed when `records`
    records were acknowledged. Raises StorageError if a record is lost, if logs differ, or if a directory is
    damaged.
    """
    os.makedirs(base, exist_ok=True)
    old, new, mirror = (os.path.join(base, name) for name in (PRIMARY, STANDBY, MIRROR))
    with screen.step("Two machines", "a primary, its hot standby in sync mode, and a mirror"), quiet():
        acknowledged = _lose_the_primary(screen, old, new, records)
        _prove(screen, new, acknowledged)
        _return(screen, old, new, mirror)
        for path in (old, new, mirror):
            if findings := segstore.check(path):
                raise StorageError(f"{path} is not sound: {findings[0]}")
            if _bytes(path) != _bytes(new):
                raise StorageError(f"{path} has not the bytes of {new}")
        screen.good("the old primary, the new one and the mirror have the same bytes, and are sound")


def _lose_the_primary(screen: Screen, old: str, new: str, records: int) -> int:
    """Kill the primary while it appends, and promote its standby. Return the number of acknowledged
    records.
    """
    with _primary(old) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        source = program.stdout.readline().strip()
        with segstore.follow(source, new, mode="sync") as standby:
            if not standby.wait_caught_up(_LONGEST_MS):
                raise StorageError(f"the standby of {source} does not catch up")
            screen.say(f"the primary serves at {source}; the standby follows: acks=all waits for both")
            program.stdin.write("go\n")
            program.stdin.flush()
            for _ in range(records):
                program.stdout.readline()
            program.kill()
            acknowledged = records + len(program.stdout.readlines())
            screen.say(f"kill -9 of the primary, which had acknowledged {acknowledged:,} records")
            with standby.promote(old="dead", reason="the demo has killed it") as store:
                log = store.partition(TOPIC, 0)
                log.append(b"written by the new primary")
                screen.say(f"the standby is promoted: it leads from leader epoch {log.leader_epoch} on")
    return acknowledged


@contextmanager
def _primary(path: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, _PROGRAM, path]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with program:
        try:
            yield program
        finally:
            program.kill()


def _prove(screen: Screen, path: str, acknowledged: int) -> None:
    """Check that the promoted store has all acknowledged records. Raises StorageError."""
    with segstore.open(path, mode="r") as store:
        values = {record.value for record in store.partition(TOPIC, 0)}
    lost = [number for number in range(acknowledged) if b"entry %d" % number not in values]
    if lost:
        raise StorageError(f"of {acknowledged:,} acknowledged records {len(lost):,} are lost, as {lost[0]}")
    screen.good(f"all {acknowledged:,} acknowledged records are there, none lost")


def _return(screen: Screen, old: str, new: str, mirror: str) -> None:
    """Start the old primary as a standby of the new primary, and wait until it has caught up. Then start a
    mirror of the new primary, and wait until it has caught up.
    """
    with segstore.open(new) as store, segstore.serve(store, port=0) as server:
        address = server.bootstrap_servers
        with segstore.follow(address, old) as standby:
            if not standby.wait_caught_up(_LONGEST_MS):
                raise StorageError("the old primary does not catch up")
            cut = sum(1 for _ in standby.excess())
        screen.say(f"the old primary follows the new one; it had {cut:,} records in excess, kept aside")
        with segstore.mirror(address, mirror, topics=[TOPIC]) as running:
            if not running.wait_caught_up(_LONGEST_MS):
                raise StorageError("the mirror does not catch up")


def _bytes(path: str) -> bytes:
    """Return the bytes of the topic's log in the directory `path`."""
    return b"".join(each.read_bytes() for each in sorted(Path(path, f"{TOPIC}-0").glob("*.log")))
