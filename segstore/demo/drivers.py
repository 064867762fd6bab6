"""The Spark driver as the demo sees it: a process in a session of its own, to which Java and the Python
workers belong; all of it is killed at once.

On disk: `errors.txt` in its work directory, for what Spark and Java have to say. Threads: one of its own
reads what the driver tells; a `Driver` is used by one other.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Any

_MODULE = "segstore.demo.spark_job"
_ERRORS = "errors.txt"
_POLL = 0.01  # seconds
_MOST_SAID = 300  # characters

Event = dict[str, Any]


class Driver:
    """A context manager: when it is left, no process of it is. `job`: fields of `demo.spark_job.Job`."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._log = os.path.join(job["work"], _ERRORS)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        command = [sys.executable, "-m", _MODULE, json.dumps(job)]
        with open(self._log, "wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "TMPDIR": job["work"]},
            )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name=f"demo-driver-{self.pid}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b'{"event"'):  # Java has the same standard output
                self._events.put(json.loads(line))

    @property
    def ended(self) -> bool:
        """Whether it has ended and all that it told was taken."""
        return not self._reader.is_alive() and self._events.empty()

    def told(self, seconds: float) -> Event | None:
        """What it tells next, waiting so long; None where it tells nothing."""
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=seconds)
        return None

    def last_words(self) -> str:
        """Why it failed: the last line of what it said to nobody."""
        with open(self._log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return lines[-1][:_MOST_SAID] if lines else f"status {self._process.wait()}"

    def wait(self) -> None:
        """Until it has ended by itself."""
        self._process.wait()

    def kill(self) -> int:
        """SIGKILL to all of its processes, until none is left; how many there were."""
        killed: set[int] = set()
        while members := session_members(self.pid):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(members)
            self._process.poll()
            time.sleep(_POLL)
        self._process.wait()
        self._reader.join()
        return len(killed)

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


def session_members(session: int) -> list[int]:
    """The processes of a session; not those that have ended and whose parent has not looked."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _belongs(name, session)]


def _belongs(pid: str, session: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # pid (name) state parent group session ...: the name may hold anything.
            state, _, _, found = file.read().rpartition(b")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(found) == session and state not in (b"Z", b"X")
