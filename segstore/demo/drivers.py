"""`Driver`: a Spark driver, which is a process in a session (setsid(2)) of its own. Java and the Python
workers run in the same session, so that all these processes can be killed together. The streaming query runs
under two drivers, one after the other: the first is killed midway, and the second completes the query.

On disk: `errors.txt` in the driver's work directory has the messages of Spark and Java; the docstring of
`demo.spark_job` names the files of the drivers. Threads: each `Driver` has a thread that reads the driver's
output; one other thread calls the methods.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple

from segstore.cli.places.of_store import open_reading
from segstore.demo.stream_board import Progress
from segstore.errors import StorageError
from segstore.files import Files
from segstore.filetree import File, files_log, read_file, snapshot
from segstore.storage.inbox.adopted_ids import read_adoption
from segstore.storage.inbox.layout import Folder
from segstore.threads import take

_MODULE = "segstore.demo.spark_job"
_ERRORS = "errors.txt"
_POLL = 0.01  # time between two kills, in seconds
_MOST_SAID = 300  # maximum length of an error's text, in characters

Event = dict[str, Any]


class Driver:
    """A Spark driver, as a context manager. At the end of the `with` block all processes of the driver are
    killed. `job` has the fields of `demo.spark_job.Job`. If `job["waits"]` is True, the driver starts Java
    and Spark at once, but begins the query only when `go` is called.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self.waits = bool(job.get("waits"))
        self._log = os.path.join(job["work"], _ERRORS)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        command = [sys.executable, "-m", _MODULE, json.dumps(job)]
        with open(self._log, "wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if self.waits else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "TMPDIR": job["work"]},
            )
        self.pid, self._killed = self._process.pid, False
        self._reader = threading.Thread(target=self._read, name=f"demo-driver-{self.pid}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # All other lines are written by Java.
            if line.startswith(b'{"event"'):
                self._events.put(json.loads(line))

    @property
    def ended(self) -> bool:
        """Return True if the driver has exited and `next_event` has returned all events of the driver."""
        return not self._reader.is_alive() and self._events.empty()

    def next_event(self, seconds: float) -> Event | None:
        """Return the driver's next event, None if there is no event within `seconds`."""
        with contextlib.suppress(queue.Empty):
            return take(self._events, seconds)
        return None

    def go(self) -> None:
        """Make the driver begin the query. Do nothing if the driver was started without `waits`."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # the driver has exited; `errors.txt` has the reason
                os.write(self._process.stdin.fileno(), b"go\n")

    def last_words(self) -> str:
        """Return the reason of a driver's failure: the last line of its error file."""
        with open(self._log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return lines[-1][:_MOST_SAID] if lines else f"status {self._process.wait()}"

    def wait(self) -> None:
        """Wait until the driver has exited."""
        self._process.wait()

    def kill(self) -> int:
        """Send SIGKILL to all processes of the driver until none is left; return the number of killed
        processes.
        """
        killed: set[int] = set()
        while not self._killed and (members := session_members(self.pid)):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(members)
            self._process.poll()
            time.sleep(_POLL)
        self._process.wait()
        self._reader.join()
        # After this assignment `kill` does nothing, because new processes may get the ids of the killed
        # processes.
        self._killed = True
        return len(killed)

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def session_members(session: int) -> list[int]:
    """Return the ids of the processes of a session, without zombies."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _belongs(name, session)]


def _belongs(pid: str, session: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The line is "pid (name) state parent group session ...", and the name may contain any
            # characters.
            state, _, _, found = file.read().rpartition(b")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(found) == session and state not in (b"Z", b"X")


# --- interrupted -------------------------------------------------------------------------------

# The functions below read what a killed streaming query has left in the store: the number of the last
# micro-batch, once from the query's checkpoint and once from the log that the query wrote.

CHECKPOINTS = "checkpoints"


class LastBatch(NamedTuple):
    """The number of the last planned micro-batch, and of the last committed micro-batch; each is -1 if there
    is no such micro-batch. `rows` is the number of rows in the log that belong to the planned micro-batch,
    None if the log has none of them.
    """

    planned: int
    committed: int
    rows: int | None

    def __str__(self) -> str:
        if self.planned == self.committed:
            return f"micro-batch {self.planned} is committed, the next not planned"
        held = "none of its rows are" if self.rows is None else f"its {self.rows:,} rows are"
        return f"micro-batch {self.planned} is not committed; {held} in the log"


def last_batch(path: str, query: str) -> LastBatch:
    """Return the last micro-batch of a query, whose checkpoints are in the directory `query`. Raises
    StorageError, InvalidRecordError.
    """
    with open_reading(path) as store:
        log = files_log(store, CHECKPOINTS)
        nodes = snapshot(log).nodes
        planned, committed = (
            max((int(name) for name in nodes.names(f"/{query}/{kind}") if name.isdecimal()), default=-1)
            for kind in ("offsets", "commits")
        )
        node = nodes.get(f"/{query}/metadata")
        text = b"".join(read_file(log, query, node)) if isinstance(node, File) else b"{}"
    # The sink has given this name to the micro-batch. The offsets of the micro-batch's rows in the log are
    # stored under the name (see docs/spark.md).
    sealed = f"spark-stream/{json.loads(text).get('id')}/{planned}"
    files = Files()
    adoption = read_adoption(files, Folder(files, path).adopted, sealed)
    rows = None if adoption is None else sum(end - first for first, end in adoption.offsets.values())
    return LastBatch(planned, committed, rows)


# --- two drivers -------------------------------------------------------------------------------

# The functions below run the streaming query under two drivers: the first driver is killed midway, and the
# second completes the query.

QUERY = "delays"
"""The name of the query in segstore.demo.spark_job."""
_PATIENCE = 0.1  # longest wait for an event, in seconds
_LOOK = 0.004  # time between two checks whether the log has changed, in seconds

Show = Callable[[bool], None]


@dataclass(frozen=True)
class SparkJobFields:
    """The fields of segstore.demo.spark_job.Job."""

    path: str
    rows: int
    late_hours: int
    work: str
    waits: bool = False
    archive: str = ""


class NotRunError(Exception):
    """Raised if Spark can't be run on this machine. The message names the missing package, and says how to
    install the package.
    """


@contextlib.contextmanager
def first_driver(path: str, rows: int, late_hours: int) -> Iterator[tuple[SparkJobFields, Driver]]:
    """Create a directory for the temporary files of both drivers, start the first driver, and yield (the
    driver's job, the driver). The driver does not begin the query before `run_killed` is called.
    """
    with tempfile.TemporaryDirectory(prefix="segstore-demo-spark-") as work:
        job = SparkJobFields(os.path.abspath(path), rows, late_hours, work)
        with Driver(asdict(replace(job, waits=True))) as driver:
            yield job, driver


def run_killed(job: SparkJobFields, driver: Driver, progress: Progress, show: Show) -> LastBatch:
    """Make the first driver begin the query. When half of the flights are read and the next micro-batch is in
    the log, kill all processes of the driver. At that moment Spark has most likely not committed this
    micro-batch. Return the last micro-batch. Raises NotRunError, StorageError.
    """
    seen = -1
    with driver:
        _introduce(driver, progress, "the first driver")
        driver.go()
        while True:
            event = _next_event(driver, progress, _PATIENCE if seen < 0 else _LOOK)
            show(False)
            if seen >= 0 and (event is not None or progress.windows() > seen):
                break
            if seen < 0 and 2 * progress.read >= progress.total:
                seen = progress.windows()
        count = driver.kill()
    left = last_batch(job.path, QUERY)
    progress.say(f"SIGKILL: the driver, Java, Python workers, {count} processes")
    progress.say(str(left))
    return left


def run_to_the_end(job: SparkJobFields, progress: Progress, show: Show, left: LastBatch) -> None:
    """Start the second driver, which continues from the first driver's checkpoint, and wait until the query
    has read all flights. `left` is the first driver's last micro-batch. Raises StorageError.
    """
    gone_on = False
    with Driver(asdict(job)) as driver:
        _introduce(driver, progress, "the second driver")
        event = None
        while event is None or event["event"] != "done":
            event = _next_event(driver, progress, _PATIENCE)
            if event is not None and event["event"] == "batch" and not gone_on:
                gone_on = True
                progress.say(_gone_on(event["batch"], left))
            show(False)
        driver.wait()


def _introduce(driver: Driver, progress: Progress, name: str) -> None:
    progress.driver = f"{name}, process {driver.pid}"
    started = "; Java has had a head start" if driver.waits else " Java and Spark"
    progress.say(f"{progress.driver}, starts{started}")


def _next_event(driver: Driver, progress: Progress, seconds: float) -> dict[str, Any] | None:
    """Return the driver's next event, None if there is no event within `seconds`. Raises NotRunError, and
    StorageError if the driver has failed or has exited too early.
    """
    event = driver.next_event(seconds)
    if event is None:
        if driver.ended:
            raise StorageError(f"the driver ended before it was done: {driver.last_words()}")
    elif event["event"] == "missing":
        raise NotRunError(event["error"])
    elif event["event"] == "failed":
        raise StorageError(f"the driver failed: {event['error']}")
    else:
        progress.take(event)
    return event


def _gone_on(batch: int, left: LastBatch) -> str:
    if batch != left.planned or left.planned == left.committed:
        return f"goes on with micro-batch {batch}"
    again = "written now" if left.rows is None else "its rows stay in the log, once"
    return f"micro-batch {batch} is run again: {again}"
