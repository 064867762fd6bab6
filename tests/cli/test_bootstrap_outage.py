"""--bootstrap while its broker is away: commands go on when it is back, or say how far they got."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest
from bootstrap_servers import server as server
from cli import start_program
from waiting import PATIENCE, until

import segstore
from segstore.cli.places import cluster_records
from segstore.cli.places.client import ClusterError
from segstore.cli.places.of_cluster import ClusterAt

pytestmark = pytest.mark.kind("clients on the wire")


def served_again(server: segstore.Server) -> segstore.Server:
    return segstore.serve(server.node.store, port=server.port, group_initial_rebalance_delay_ms=0)


def test_consume_follows_over_an_outage_until_ctrl_c(server: segstore.Server) -> None:
    log = server.node.store.partition("u")
    arguments = ("consume", "u", "-f", "--format", "values", "-b", server.bootstrap_servers)
    log.append(b"first")
    with start_program(*arguments) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"first\n"
            log.append(b"second")
            assert process.stdout.readline() == b"second\n"
            server.close()
            assert process.stderr.readline().endswith(b"; trying again\n")
            log.append(b"third")
            with served_again(server):
                assert process.stdout.readline() == b"third\n"
                process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE) == 130
            assert b"Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_consume_without_follow_gives_up(
    server: segstore.Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It never ended, and told the same line some hundred times."""
    monkeypatch.setattr(cluster_records, "_LONGEST_MS", 2_000)
    where = server.bootstrap_servers
    with ClusterAt(where, {}).reading() as place, place.reading("t", (0,), "read_committed") as reading:
        assert reading.logs[0].end_offset == 10
        server.close()
        told = f"{where}: t-0: ended at offset 0 of 10, after 2 s without answer: .*Connection refused"
        with pytest.raises(ClusterError, match=told):
            list(reading._until(0, 10))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len({*lines}) > 0
    assert all(line.endswith("; trying again") for line in lines)


def test_the_same_outage_is_told_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(cluster_records, "time", SimpleNamespace(monotonic=lambda: now))
    heard: list[str] = []
    client: Any = SimpleNamespace(bootstrap="h:1", calm=lambda: heard.pop() if heard else "")
    outage, told = cluster_records.Outage(client, 30), []
    for seconds, word in [(0, "a"), (1, "a"), (1, ""), (1, "b"), (9, "b"), (1, "b"), (9, ""), (8, "b")]:
        now += seconds
        heard[:] = [word]
        outage.look()
        told.append(capsys.readouterr().err.removeprefix("segstore: h:1: ").removesuffix("; trying again\n"))
    assert told == ["a", "", "", "b", "", "b", "", "b"]
    assert not outage.is_too_long()
    now += 1.5
    assert outage.is_too_long()
    outage.end()
    assert not outage.is_too_long()


def test_produce_sends_on_after_an_outage(server: segstore.Server) -> None:
    log = server.node.store.partition("u")
    with start_program("produce", "u", "-b", server.bootstrap_servers) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(b"first\n")
            process.stdin.flush()
            until(lambda: log.end_offset == 1)
            server.close()
            process.stdin.write(b"second\nthird\n")
            process.stdin.flush()
            with served_again(server):
                _, told = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, told.startswith(b"u: 3 records, 16 bytes in ")) == (0, True), told
    assert [*log.read(0).values] == [b"first", b"second", b"third"]


def test_an_interrupted_produce_tells_what_was_acknowledged(server: segstore.Server) -> None:
    log = server.node.store.partition("u")
    with start_program("produce", "u", "-b", server.bootstrap_servers) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(b"first\nsecond\n")
            process.stdin.flush()
            until(lambda: log.end_offset == 2)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, told.startswith(b"u: 2 records, 11 bytes in ")) == (130, True), told
