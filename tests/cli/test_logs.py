"""The log of `segstore serve`, `follow` and `mirror`: its lines, its levels, and a standard error that takes
none.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cli import run, start_program
from waiting import PATIENCE, until
from wire_client import SOFTWARE, WireClient

import segstore
from segstore.cli import logs
from segstore.cli.logs import MOST, LineHandler, as_json, as_text, logged
from segstore.logger import Logger
from segstore.testing import Broker

log = Logger("segstore")
START = re.compile(r"[0-9-]{10}T[0-9:]{8}\.[0-9]{3}Z (DEBUG|INFO|WARNING|ERROR) segstore(?:\.[a-z_]+)?: ")


def record(message: str, *args: object, error: Exception | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    made = logging.LogRecord("segstore", logging.WARNING, "file", 1, message, args, info)
    made.created = 1796031662.123
    return made


LINES: dict[str, tuple[logging.LogRecord, str]] = {
    "a message": (record("%s and %d", "this", 2), "this and 2"),
    "a percent sign without arguments": (record("100 %"), "100 %"),
    "a name that would be a line of its own": (record("a\n2026 ERROR b\r\n"), "a\\n2026 ERROR b\\r\\n"),
    "a name that would command a terminal": (record("\x1b[2J\x07\x9b1m"), "\\x1b[2J\\x07\\x9b1m"),
    "letters": (record("größer"), "größer"),
}


@pytest.mark.parametrize(("made", "told"), LINES.values(), ids=LINES)
def test_a_record_is_a_line(made: logging.LogRecord, told: str) -> None:
    assert as_text(made) == f"2026-11-30T09:41:02.123Z WARNING segstore: {told}"
    line = as_json(made)
    assert line.isprintable()
    assert json.loads(line) == {
        "time": "2026-11-30T09:41:02.123Z",
        "level": "WARNING",
        "logger": "segstore",
        "component": "segstore",
        "message": made.getMessage(),
    }


COMPONENTS = {
    "/a/segstore/server/network/loop.py": "segstore.server",
    "/segstore/segstore/cli/serve.py": "segstore.cli",
    "/a/segstore/threads.py": "segstore.threads",
    "/a/program.py": "segstore",
}


@pytest.mark.parametrize("path", COMPONENTS)
def test_a_line_has_the_component_that_it_comes_from(path: str) -> None:
    made = record("told")
    made.pathname = path
    assert f" WARNING {COMPONENTS[path]}: told" in as_text(made)
    assert json.loads(as_json(made))["component"] == COMPONENTS[path]


def test_a_traceback_is_indented_and_a_string_in_json() -> None:
    made = record("failed", error=ValueError("first\nsecond"))
    first, *rest = as_text(made).splitlines()
    assert first.endswith("Z WARNING segstore: failed")
    assert rest == ["    ValueError: first", "    second"]
    assert json.loads(as_json(made))["exc_info"] == "ValueError: first\nsecond"


# --- standard error ----------------------------------------------------------------------------------


@contextmanager
def pipe_for_stderr(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Have a pipe as standard error, whose end for reading is given."""
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "__stderr__", stream)
        yield reading
    monkeypatch.undo()


def test_a_pipe_that_is_full_holds_up_nobody_and_loses_lines_that_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "MOST", 100)
    handler = LineHandler(lambda made: made.getMessage())
    with pipe_for_stderr(monkeypatch) as reading, open(reading, "rb") as lines:
        for i in range(1000):
            handler.handle(record("%06d" + "." * 1000, i))  # 1 MB: more than a pipe and 100 lines are
        taken = 1000 - handler._lost
        assert 100 <= taken < 1000
        got = [lines.readline() for _ in range(taken)]
        assert [int(line[:6]) for line in got] == [*range(taken)]
        told = lines.readline()
        assert told == b"%d lines are lost: standard error took nothing\n" % (1000 - taken)
        handler.close()


def test_lines_that_are_lost_while_the_thread_rests_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted after it has looked whether any are: what waits wakes it up."""
    monkeypatch.setattr(logs, "MOST", 0)
    handler = LineHandler(lambda made: made.getMessage())
    with pipe_for_stderr(monkeypatch) as reading, open(reading, "rb") as lines:
        handler.handle(record("one"))
        assert lines.readline() == b"1 lines are lost: standard error took nothing\n"
        monkeypatch.setattr(logs, "MOST", 10)
        handler.handle(record("two"))
        assert lines.readline() == b"two\n"
        handler.close()


def test_a_handler_that_is_closed_or_in_a_child_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """`logging` flushes and closes its handlers at the interpreter's end."""
    handler, child = LineHandler(lambda made: made.getMessage()), LineHandler(as_text)
    handler.close()
    child._waiting.put(None)
    child._thread.join()  # a fork leaves it behind
    monkeypatch.setattr(logs.Latch, "wait", lambda *_: pytest.fail("it waits"))
    handler.flush()
    handler.close()
    with pipe_for_stderr(monkeypatch) as reading, open(reading, "rb") as lines:
        child.handle(record("told"))
        assert lines.readline().endswith(b": told\n")
        child.flush()
        child.close()


def test_a_reader_that_has_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = LineHandler(lambda made: made.getMessage())
    with pipe_for_stderr(monkeypatch) as reading:
        os.close(reading)
        for _ in range(100):
            handler.handle(record("x" * 10_000))
        handler.flush()
        assert handler._thread.is_alive()
        handler.close()
    handler._thread.join(PATIENCE)
    assert not handler._thread.is_alive()


def test_a_pipe_of_someone_who_does_not_wait_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = LineHandler(lambda made: made.getMessage())
    with pipe_for_stderr(monkeypatch) as reading, open(reading, "rb") as lines:
        os.set_blocking(sys.stderr.fileno(), False)
        for _ in range(20):
            handler.handle(record("x" * 50_000))
        assert [len(lines.readline()) for _ in range(20)] == [50_001] * 20
        handler.close()


def test_a_line_that_a_full_disk_has_cut_ends_before_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A line of JSON within another one would be lost to its readers."""
    room, write = 8, os.write

    def write_some(fd: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(fd, data[:room])
        room -= written
        return written

    path = tmp_path / "log"
    with path.open("w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "__stderr__", stream)
        monkeypatch.setattr(logs.os, "write", write_some)
        for line in ("first", "second", "third"):
            logs.write(line)
        room = 100
        logs.write("fourth")
        logs.write("fifth")
        monkeypatch.undo()
    assert path.read_text().splitlines() == ["first", "se", "fourth", "fifth"]


def test_levels_and_handlers_are_as_before_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("segstore")
    before = (logger.level, [*logger.handlers])
    with logged("text", "warning"):
        log.info("not told")
        log.warning("told")
    assert (logger.level, logger.handlers) == before
    assert re.fullmatch(START.pattern + "told\n", capsys.readouterr().err)


LEVELS = {"debug": 4, "info": 3, "warning": 2, "error": 1}


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_below_the_level_is_left_out(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    with logged("json", level):
        for tell in (log.error, log.warning, log.info, log.debug):
            tell("a message")
    lines = [json.loads(line)["level"] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["ERROR", "WARNING", "INFO", "DEBUG"][: LEVELS[level]]
    assert MOST > 4


# --- commands ----------------------------------------------------------------------------------------


def messages(err: bytes, form: str) -> list[str]:
    """Return the messages of a log, each line of which must be of that form."""
    lines = err.decode().splitlines()
    if form == "json":
        return [json.loads(line)["message"] for line in lines]
    assert all(START.match(line) for line in lines), lines
    return [START.sub("", line) for line in lines]


def listening(program: subprocess.Popen[bytes]) -> int:
    """Wait for a server's line on standard output; return its port."""
    assert program.stdout is not None
    return int(program.stdout.readline().decode().rpartition(":")[2])


def malformed(port: int) -> None:
    """Send a request that is none, and wait until its connection is closed."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
        sock.sendall(b"\0\0\0\x04GET ")
        with suppress(ConnectionError):
            assert sock.recv(1) == b""


@contextmanager
def program(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command; it is killed at the end."""
    with start_program(*arguments, **options) as started:
        try:
            yield started
        finally:
            started.kill()


@pytest.mark.kind("programs")
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_serve_tells_its_start_and_its_end(
    store_dir: Path, form: str, number: signal.Signals, status: int
) -> None:
    allow = ("--allow", "User:a: read topic t", "--super-users", "User:b;User:c")
    options = ("--listen", "127.0.0.1:0", "--log-format", form, *allow)
    with program("serve", "-s", store_dir, *options) as running:
        port = listening(running)
        running.send_signal(number)
        _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == status
    start, new, stop, closed = messages(err, form)
    assert new == f"{store_dir} is a new store: there was none"
    assert start == (
        f"segstore {segstore.__version__}, process {running.pid}: {store_dir} listens on "
        f"PLAINTEXT://127.0.0.1:{port} (not encrypted, clients are anonymous); "
        "allowed by 1 clause of allow and 2 super users"
    )
    assert stop == f"{store_dir} stops: {number.name}"
    assert re.fullmatch(rf"{re.escape(str(store_dir))} is closed, after [0-9]+\.[0-9] s", closed)


@pytest.mark.kind("programs")
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("command", ["follow", "mirror"])
def test_follow_and_mirror_tell_their_start_and_their_end(store_dir: Path, command: str, form: str) -> None:
    with Broker(topics=["t"]) as broker:
        source = broker.bootstrap_servers
        with program(command, source, store_dir, "--log-format", form) as running:
            assert running.stdout is not None
            running.stdout.readline()
            running.terminate()
            _, err = running.communicate(timeout=PATIENCE)
        told = [each for each in messages(err, form) if str(store_dir) in each]
    assert running.returncode == 0
    verb = "mirrors" if command == "mirror" else "follows"
    assert f": {store_dir} {verb} {source}" in told[0]
    assert told[1] == f"{store_dir} stops: SIGTERM"
    assert " is closed, after " in told[2]
    assert len(told) == 3


def test_an_error_that_ends_the_command_is_json_too(store_dir: Path) -> None:
    with segstore.open(store_dir):
        arguments = ("serve", "-s", store_dir, "--listen", "127.0.0.1:0")
        result, plain = run(*arguments, "--log-format", "json"), run(*arguments)
    assert result.exit_code == plain.exit_code == 1
    row: dict[str, Any] = json.loads(result.stderr)
    assert row["level"] == "ERROR"
    assert plain.stderr == f"segstore: {row['message']}\n"


@pytest.mark.kind("programs")
@pytest.mark.parametrize("gone", ["closed", "its reader has gone", "full"])
def test_a_server_goes_on_without_a_standard_error(store_dir: Path, gone: str) -> None:
    """A disk that is full is /dev/full."""
    options: dict[str, Any] = {}
    if gone == "closed":
        options["preexec_fn"] = lambda: os.close(2)
    with open("/dev/full", "wb") as full:
        if gone == "full":
            options["stderr"] = full
        with program("serve", "-s", store_dir, "--listen", "127.0.0.1:0", **options) as running:
            if gone == "its reader has gone":
                assert running.stderr is not None
                running.stderr.close()
            port = listening(running)
            for _ in range(3):  # each is told
                malformed(port)
            with WireClient("127.0.0.1", port) as wire:
                assert wire.ask("ApiVersions", 3, **SOFTWARE).error_code == 0
            running.terminate()
            assert running.wait(PATIENCE) == 0


@pytest.mark.kind("programs")
def test_a_server_whose_standard_error_takes_nothing_answers_and_ends(store_dir: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)))
    options = ("--listen", "127.0.0.1:0")
    with (
        open(writing, "wb") as full,
        open(reading, "rb"),
        program("serve", "-s", store_dir, *options, stderr=full) as running,
    ):
        port = listening(running)
        malformed(port)
        with WireClient("127.0.0.1", port) as wire:
            assert wire.ask("ApiVersions", 3, **SOFTWARE).error_code == 0
        running.terminate()
        assert until(lambda: running.poll() is not None)
    assert running.returncode == 0
