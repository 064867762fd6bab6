"""Zero copy, measured: a short run from end to end; its parts: layout, page cache, receivers, strace."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import until

import segstore
from segstore.bench.choices import KIB, SINKS, SIZES, WAYS_TO_SEND
from segstore.bench.results import Results, filesystem, load, write
from segstore.bench.terminal import table
from segstore.bench.zero_copy import machine_state, plan, receivers, run, syscalls
from segstore.bench.zero_copy.contenders import ALL_METHODS, EXHIBITS
from segstore.bench.zero_copy.measure import CPU, FIGURES, THROUGHPUT, sample, unavailable
from segstore.bench.zero_copy.plan import BARE, LOG, OS_SENDFILE, ContenderGroup, MeasurementPlan
from segstore.bench.zero_copy.receivers import sink
from segstore.bench.zero_copy.report import details, draw, summary
from segstore.cli.output import console
from segstore.errors import StorageError
from segstore.storage.transfer import METHODS

pytestmark = [pytest.mark.on_disk, pytest.mark.kind("programs")]

SHORT = MeasurementPlan(sizes=(KIB, 64 * KIB), runs=2, seconds=0.0005, stretch=256 * KIB)
PAIRS = [(sink, method) for sink in SINKS for method, of in ALL_METHODS.items() if sink in of.kinds]


@pytest.fixture(scope="module")
def found(disk_dir: Path) -> Results:
    place = disk_dir / "zero-copy"
    place.mkdir()
    allowed = os.sched_getaffinity(0)
    results = run.run(place, SHORT, lambda done, total, what: None, strace=False)
    assert os.listdir(place) == []
    assert children() == []
    assert os.sched_getaffinity(0) == allowed
    return results


def children() -> list[int]:
    """Processes that receive for this one."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            parent = int(Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and "drain.py" in Path("/proc", pid, "cmdline").read_text():
                found.append(int(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


# --- the whole ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["warm", "cold"])
@pytest.mark.parametrize(("to", "method"), PAIRS)
def test_every_method_gives_a_cell_for_every_sink(found: Results, to: str, method: str, cache: str) -> None:
    if method in unavailable():
        pytest.skip(f"{method} is not available here: {unavailable()[method]}")
    for size in SHORT.sizes:
        cell = found.cell(way=LOG, size=size, cache=cache, sink=to, method=method)
        runs = SHORT.runs - cell.notes.get("not cold", 0)
        assert set(cell.figures) == (set(FIGURES) if runs else set())
        assert {len(figure.runs) for figure in cell.figures.values()} <= {runs}
        assert all(figure.low > 0 for name, figure in cell.figures.items() if name in (THROUGHPUT, "p50 us"))
        assert sum(cell.notes["calls"].values()) / size * 1e6 == cell.notes["calls per MB"]


def test_only_what_can_serve_a_sink_is_measured(found: Results) -> None:
    pairs = {(cell.keys["sink"], cell.keys["method"]) for cell in found.cells} - {
        (to, OS_SENDFILE) for to in SINKS
    }
    assert pairs == {(to, method) for to, method in PAIRS if method not in unavailable()}


CALLS = {
    "sendfile": {"sendfile": 1},
    "read": {"pread64": 1, "write": 1},
    "mmap": {"mmap": 1, "munmap": 1, "write": 1},
    "splice": {"splice": 2},
}


def whole(calls: Mapping[str, float], to: str) -> dict[str, float]:
    """The mean calls of a transfer. A blocking write into a socket or pipe gives a part where the kernel has
    work for the process, a signal or io_uring's: of some transfers, so that the mean has a fraction.
    """
    return dict(calls) if to == "file" else {name: math.floor(count) for name, count in calls.items()}


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("to", ["tcp", "unix", "file"])
def test_bare_calls_of_64_kib(found: Results, to: str, method: str) -> None:
    cell = found.cell(way=BARE, size=64 * KIB, cache="warm", sink=to, method=method)
    assert whole(cell.notes["calls"], to) == CALLS[method]


def test_sendfile_is_one_call_through_the_log_too(found: Results) -> None:
    for to in SINKS:
        cell = found.cell(way=LOG, size=64 * KIB, cache="warm", sink=to, method="sendfile")
        assert whole(cell.notes["calls"], to)["sendfile"] == 1


def test_results_are_kept_shown_and_drawn(
    found: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(found, tmp_path / "r.json")
    assert load(tmp_path / "r.json").as_json()["cells"] == found.as_json()["cells"]
    screen = console()
    for part in (*summary(found), *details(found), table(found)):
        screen.print(part)
    shown = capsys.readouterr().out
    assert all(finding.claim in shown and finding.answer for finding in found.findings)
    assert all(f"{to}, {cache}: MB/s" in shown for to in SINKS for cache in ("warm", "cold"))
    pictures = draw(replace(found, cells=found.where(sink="tcp")), str(tmp_path))
    assert len(pictures) == 8
    assert all(os.path.getsize(path) > 1000 for path in pictures)


def test_what_auto_shall_take_is_told_for_every_sink(found: Results) -> None:
    table = found.settings["recommended"]
    assert list(table) == list(SINKS)
    assert {steps[-1][0] for steps in table.values()} == {None}


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def progress(done: int, total: int, what: str) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run(tmp_path, SHORT, progress, strace=False)
    assert os.listdir(tmp_path) == []
    assert children() == []


# --- the logs -----------------------------------------------------------------------------------


def test_a_transfer_sends_exactly_its_size(store_dir: Path) -> None:
    sizes = [size for size in SIZES.values() if size < 1 << 20]
    plan.write(str(store_dir), sizes, ["warm"], 1 << 20)
    with segstore.open(store_dir) as store, open(os.devnull, "wb") as null:
        for size in sizes:
            stretch = plan.stretch(str(store_dir), size, "warm")
            assert stretch.transfers >= 2
            log = store.partition(stretch.topic, 0)
            for i in (0, 1, stretch.transfers - 1):
                sent = log.transfer(null, i * stretch.step, size, "read")
                assert sent == (size, (i + 1) * stretch.step)


# --- the page cache -----------------------------------------------------------------------------


@pytest.mark.parametrize("pages", [0, 1, 5, 1000])
def test_pages_go_and_come(tmp_path: Path, pages: int) -> None:
    path = str(tmp_path / "f")
    Path(path).write_bytes(b"x" * (pages * 4096))
    assert machine_state.pages(path) == pages
    assert machine_state.resident(path) == pages
    if filesystem(tmp_path)["type"] == "tmpfs":
        pytest.skip("tmpfs has nowhere but the page cache for its files")
    assert machine_state.evict(path) == 0
    with open(path, "rb") as file:
        assert len(file.read(10)) == min(10, pages * 4096)
    assert (machine_state.resident(path) > 0) == (pages > 0)


def test_pages_that_a_reader_holds_are_told(tmp_path: Path) -> None:
    """As those in a pipe that nobody reads from."""
    if filesystem(tmp_path)["type"] == "tmpfs":
        pytest.skip("tmpfs has nowhere but the page cache for its files")
    path = tmp_path / "f"
    path.write_bytes(b"x" * 8192)
    reading, writing = os.pipe()
    with open(path, "rb") as file:
        os.sendfile(writing, file.fileno(), 0, 8192)
    assert machine_state.evict(str(path)) == 2
    os.close(reading)
    os.close(writing)
    assert machine_state.evict(str(path)) == 0


# --- receivers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SINKS)
def test_a_receiver_takes_what_is_sent_and_ends(kind: str, tmp_path: Path) -> None:
    data = b"x" * 100_000
    with sink(kind, str(tmp_path)) as to:
        for _ in range(3):
            to.expect(2 * len(data))
            for part in (data, data):
                assert os.write(to.fd, part) == len(part)
            to.wait()
        assert (children() == []) == (kind == "file")
    assert children() == []
    assert os.listdir(tmp_path) == []


def test_a_receiver_that_has_ended_is_told(tmp_path: Path) -> None:
    with sink("unix", str(tmp_path)) as to:
        to.expect(10)
        (pid,) = children()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StorageError, match="ended"):
            to.wait()


def test_a_file_that_is_short_is_told(tmp_path: Path) -> None:
    with sink("file", str(tmp_path)) as to:
        to.expect(10)
        os.write(to.fd, b"12345")
        with pytest.raises(StorageError, match="5 bytes in place of 10"):
            to.wait()


def test_what_a_method_did_not_send_is_told(tmp_path: Path) -> None:
    with sink("file", str(tmp_path)) as to, pytest.raises(StorageError, match="20 bytes were sent in place"):
        sample(to, lambda i: 10, 11, range(2))


KILLED = """
import os, signal, sys
from contextlib import ExitStack
from segstore.bench.zero_copy.receivers import sink
with ExitStack() as stack:
    for kind in ("tcp", "unix", "pipe"):
        to = stack.enter_context(sink(kind, sys.argv[1]))
        to.expect(1000)
        print(to.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_receivers_end_with_the_one_that_is_killed(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", KILLED, tmp_path], capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL
    pids = [int(line) for line in ran.stdout.split()]
    assert len(pids) == 3
    until(lambda: not any(map(alive, pids)))


def alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_sender_and_receiver_have_a_core_each() -> None:
    allowed = os.sched_getaffinity(0)
    with machine_state.apart() as theirs:
        ours = os.sched_getaffinity(0)
        assert (theirs is None) == (len(allowed) == 1)
        assert theirs is None or (len(ours) == 1 and theirs not in ours and theirs in allowed)
    assert os.sched_getaffinity(0) == allowed


# --- strace -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def logs() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as place:
        root = os.path.join(place, "store")
        plan.write(root, [16 * KIB], ["warm"], 1 << 20)
        yield root


@pytest.mark.judge("strace")
@pytest.mark.parametrize(("to", "method"), PAIRS)
def test_strace_counts_the_same_calls(logs: str, tmp_path: Path, to: str, method: str) -> None:
    if (why := syscalls.why_not()) is not None:
        pytest.skip(why if "strace" in why else f"strace: {why}")
    if method in unavailable():
        pytest.skip(f"{method} is not available here: {unavailable()[method]}")
    judged = syscalls.judge(logs, str(tmp_path), ContenderGroup(16 * KIB, "warm", to), method)
    assert judged.counted == judged.traced
    assert sum(judged.counted.values()) >= syscalls.TRANSFERS


@pytest.mark.judge("strace")
@pytest.mark.parametrize("which", ["traced", "strace"])
def test_ctrl_c_while_a_process_is_started(
    logs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Within Popen: it ran on, in a directory that was gone by then, and said so on the terminal."""
    if (why := syscalls.why_not()) is not None:
        pytest.skip(why if "strace" in why else f"strace: {why}")
    started = []

    class Interrupted(subprocess.Popen[str]):
        def __init__(self, command: list[str], **options: object) -> None:
            super().__init__(command, **options)  # type: ignore[call-overload]
            started.append(self)
            if (command[0] == "strace") == (which == "strace"):
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        syscalls.judge(logs, str(tmp_path), ContenderGroup(16 * KIB, "warm", "tcp"), "read")
    assert started
    assert all(process.returncode is not None for process in started)
    assert list(tmp_path.iterdir()) == []


def test_cpu_is_of_user_and_system(found: Results) -> None:
    for cell in found.cells:
        if cell.figures:
            parts = [cell.figures[name].runs for name in ("user s/GB", "system s/GB")]
            assert [u + s for u, s in zip(*parts, strict=True)] == pytest.approx(cell.figures[CPU].runs)


def test_a_call_that_the_kernel_begins_anew_counts_once() -> None:
    lines = (
        "splice(8, [0], 6, NULL, 65536, 0) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)",
        "splice(8, [0], 6, NULL, 65536, SPLICE_F_MOVE) = 65536",
        "mmap(NULL, 8192, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000",
        "+++ exited with 0 +++",
    )
    assert syscalls._listed("\n".join(lines)) == {"splice": 1}


def test_the_choices_name_every_way_and_sink() -> None:
    """They stand apart from these, so that the help of the command needs no engine."""
    assert sorted(WAYS_TO_SEND) == sorted({*METHODS, *EXHIBITS})
    assert (*receivers._ENDS, "file") == SINKS
