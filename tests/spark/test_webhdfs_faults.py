"""Operations of the checkpoint store that are delayed, fail or get no answer, for studies of recovery."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest
from checkpoint_store import served

IO = "java.io.IOException"


def test_the_nth_operation_fails(store_dir: Path) -> None:
    with served(store_dir) as hadoop:
        fault = hadoop.ck.fail("RENAME", "/q/commits/*", nth=2, times=2)
        done = []
        for n in range(5):
            hadoop.put(f"/q/offsets/{n}", b"x")
            done.append(hadoop.put(f"/q/commits/{n}", b"x").status)
        assert done == [200, 403, 403, 200, 200]
        assert fault.hits == 2
        assert hadoop.names("/q/commits") == [".1.tmp", ".2.tmp", "0", "3", "4"]


def test_a_failure_of_what_was_done(store_dir: Path) -> None:
    with served(store_dir) as hadoop:
        hadoop.ck.fail("CREATE", after=True)
        answer = hadoop.create("/f", b"f")
        assert (answer.status, answer.java) == (403, IO)
        assert "injected" in answer.told["RemoteException"]["message"]
        assert hadoop.open("/f").body == b"f"
        hadoop.ck.fail("CREATE", times=10)
        assert hadoop.create("/g", b"g" * 100_000).status == 403
        hadoop.ck.heal()
        assert hadoop.create("/g", b"g").status == 201


def test_delays_and_drops(store_dir: Path) -> None:
    with served(store_dir) as hadoop:
        delay = hadoop.ck.delay(0.2, "MKDIRS")
        hadoop.mkdirs("/d")
        assert delay.hits == 1
        hadoop.mkdirs("/e")
        first, _ = (op for op in hadoop.ck.operations if op.name == "MKDIRS")
        assert first.seconds >= 0.2
        assert (delay.hits, delay.seen) == (1, 2)
        hadoop.ck.drop(path="/gone")
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            hadoop.mkdirs("/gone")
        assert hadoop.names("/") == ["d", "e"]
        assert hadoop.ck.operations[-2][:3] == ("MKDIRS", "/gone", 0)
        assert hadoop.ck.counts == {"MKDIRS": 3, "LISTSTATUS": 1}
