"""gunicorn, whose workers share a store: started, asked by several clients, and ended."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from places import environment
from waiting import PATIENCE, until

WORKERS, CLIENTS = 4, 4


class Answer(NamedTuple):
    """What a worker has answered: its status, and its words."""

    status: int
    words: list[str]


class Gunicorn:
    """A running gunicorn. What it logs lies in a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log
        self.port = 0

    @property
    def log(self) -> str:
        return self._log.read_text()

    def await_port(self) -> None:
        def look() -> re.Match[str] | None:
            assert self.process.poll() is None, self.log
            return re.search(r"Listening at: http://127.0.0.1:(\d+)", self.log)

        self.port = int(until(look)[1])

    @property
    def workers(self) -> list[int]:
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def await_workers(self) -> None:
        """Wait until all workers are there, and heed signals: gunicorn's get lost before. The application
        logs "ready" and the worker's pid in its hook `post_worker_init`.
        """

        def are_ready() -> bool:
            workers, log = self.workers, self.log
            return len(workers) == WORKERS and all(f"ready {pid}\n" in log for pid in workers)

        until(are_ready)

    def ask(self, path: str) -> Answer:
        """Ask for a path. Raises OSError or HTTPException if nobody answers."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            line.request("GET", path)
            answer = line.getresponse()
            return Answer(answer.status, answer.read().decode().split())
        finally:
            line.close()


@contextmanager
def gunicorn(directory: Path, module: str, *options: str, **variables: str) -> Iterator[Gunicorn]:
    """Run the application `app` of a module in this directory, which is the configuration, too."""
    command = [sys.executable, "-m", "gunicorn", f"--config={module}.py", "--bind=127.0.0.1:0"]
    command += [f"--workers={WORKERS}", "--timeout=200", *options, f"{module}:app"]
    log = directory / "gunicorn.log"
    with log.open("wb") as out:
        env = {**environment(), **variables}
        process = subprocess.Popen(command, cwd=directory, env=env, stdout=out, stderr=out)
    running = Gunicorn(process, log)
    try:
        running.await_port()
        yield running
        running.await_workers()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, running.log
    finally:
        left = running.workers if process.poll() is None else []
        process.kill()
        process.wait()
        for pid in left:
            os.kill(pid, signal.SIGKILL)


class Load:
    """Clients that ask on and on, each time for another path, until the block ends."""

    def __init__(self, asked: Gunicorn) -> None:
        self._asked, self._done = asked, threading.Event()
        self.answered: dict[str, Answer] = {}
        self.unanswered: set[str] = set()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(CLIENTS)]

    def _ask(self, number: int) -> None:
        turn = 0
        while not self._done.is_set():
            path, turn = f"/{number}/{turn}", turn + 1
            try:
                self.answered[path] = self._asked.ask(path)
            except (OSError, http.client.HTTPException):
                self.unanswered.add(path)  # its worker was killed: perhaps it was appended

    def more(self, n: int) -> None:
        """Wait until so many more paths are answered."""
        least = len(self.answered) + n
        until(lambda: len(self.answered) >= least)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(PATIENCE)
