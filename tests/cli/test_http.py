"""`--http` of serve, follow and mirror."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli import run, start_program
from scrapes import get, scrape, value
from waiting import PATIENCE, until

from segstore.testing import Broker


@contextmanager
def shown(
    *arguments: str | Path, option: Sequence[str] = ("--http", "0")
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a command with pages on a port that is free; gives the process, and where they are."""
    program = start_program(*arguments, *option, stderr=subprocess.DEVNULL)
    with program:
        try:
            assert program.stdout is not None
            lines = [program.stdout.readline().decode() for _ in range(2)]
            found = re.fullmatch(r"metrics and health are at http://(127\.0\.0\.1:[0-9]+)\n", lines[1])
            assert found is not None, lines
            yield program, found[1]
        finally:
            program.kill()


@pytest.mark.kind("programs")
def test_of_a_server(store_dir: Path) -> None:
    with shown("serve", "-s", store_dir, "--listen", "127.0.0.1:0") as (program, address):
        assert get(address, "/healthz").body == "ok\n"
        assert value(scrape(address), "segstore_ready") == 1.0
        program.terminate()
        assert program.wait(PATIENCE) == 0


@pytest.mark.kind("programs")
def test_of_a_server_with_a_file(store_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("listeners = PLAINTEXT://127.0.0.1:0\nhttp.listener = 0\n")
    with shown("serve", "-s", store_dir, "--config", path, option=()) as (_, address):
        assert get(address, "/healthz").body == "ok\n"


@pytest.mark.kind("programs")
@pytest.mark.parametrize("command", ["follow", "mirror"])
def test_of_a_follower(command: str, tmp_path: Path) -> None:
    with (
        Broker(topics=["t"]) as broker,
        shown(command, broker.bootstrap_servers, tmp_path / "d") as (program, address),
    ):
        until(lambda: get(address, "/readyz").body == "ok\n")
        program.terminate()
        assert program.wait(PATIENCE) == 0


REFUSED = {
    "an address that is none": (
        ["--http", "nowhere"],
        "--http='nowhere': must be HOST:PORT, :PORT or PORT",
    ),
    "a port that is taken": (["--http", "{taken}"], "Address already in use"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    arguments, told = REFUSED[name]
    with Broker() as broker:
        given = [each.format(taken=broker.bootstrap_servers) for each in arguments]
        done = run("serve", "-s", tmp_path / "new", "--listen", "127.0.0.1:0", *given)
    assert told in done.stderr
    assert done.exit_code == 1
    assert not (tmp_path / "new").exists()


def test_it_is_not_for_a_mirror_to_a_cluster(store_dir: Path) -> None:
    done = run("mirror", "--to", "127.0.0.1:9", "-s", store_dir, "--http", "0")
    assert done.exit_code == 2
    assert "--http is for mirrors of a cluster, and not for --to." in done.stderr
