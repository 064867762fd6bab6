"""The process of a standby in sync mode is stopped for longer than replica.lag.time.max.ms, and goes on.

Promise: the primary's appends with acks=all wait for it, and are then refused with nothing written; once the
standby goes on it catches up, and they go on. Nothing that was acknowledged is lost, and both logs are equal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mirrors import stored
from waiting import until

import segstore

pytestmark = pytest.mark.kind("programs")

LAG_MS = 300


@contextmanager
def following(source: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose standby of `source` waits for its input; it is killed at the end."""
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(segstore.__file__).parents[1])])
    command = [sys.executable, "-m", "standby_rounds.node", "none", "follow", str(directory), source, "sync"]
    environ = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, cwd=directory.parent
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"following\n"
            yield process
        finally:
            process.kill()


def contents(directory: Path) -> list[bytes | None]:
    with segstore.open(directory, mode="r") as store:
        return [record.value for record in store.partition("t").scan()]


def test_a_standby_is_stopped_until_it_is_out_of_sync_and_goes_on(store_dir: Path, tmp_path: Path) -> None:
    config = {"replica.lag.time.max.ms": LAG_MS}
    with segstore.open(store_dir, config=config) as store, segstore.serve(store, port=0) as server:
        store.create_topic("t")
        log, primary = store.partition("t"), store.engine.primary  # type: ignore[union-attr]
        with following(server.bootstrap_servers, tmp_path / "standby") as process:
            until(lambda: primary.registration.sync and not primary._away())
            acked = [log.append(b"before %d" % n) for n in range(50)]
            os.kill(process.pid, signal.SIGSTOP)
            until(lambda: bool(primary._away()))
            end, seen = log.log_end_offset, log.high_watermark
            for _ in range(3):
                with pytest.raises(segstore.NotEnoughReplicasError, match="has not fetched for"):
                    log.append(b"while the standby is stopped")
            assert (log.log_end_offset, log.high_watermark) == (end, seen)
            os.kill(process.pid, signal.SIGCONT)
            until(lambda: not primary._away())
            acked += [log.append(b"behind %d" % n) for n in range(50)]
            assert acked == list(range(100))
    expected = [*(b"before %d" % n for n in range(50)), *(b"behind %d" % n for n in range(50))]
    assert contents(store_dir) == expected
    assert stored(store_dir, "t", 0) == stored(tmp_path / "standby", "t", 0)
    assert list(segstore.check(tmp_path / "standby")) == []
