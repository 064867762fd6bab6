"""Promise: reads and writes that are interrupted, or transfer only a part, are continued."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from faulty.counts import record
from places import IMPORTED, SUPPORT
from stores import tree
from waiting import PATIENCE

pytestmark = pytest.mark.kind("programs")

WORK = """
import ctypes, json, sys
from pathlib import Path
import segstore
from stores import START_MS, Clock, values

shim = ctypes.CDLL(None)
if sys.argv[2] == "interrupted":
    shim.interrupt_calls(1)
path = Path(sys.argv[1])
settings = {"segment.bytes": 2000, "index.interval.bytes": 100, "flush.messages": 1}
made = [b"%d" % i * 30 for i in range(60)]
times = range(START_MS, START_MS + 60)  # a clock that goes on by itself is asked by other threads, too
with segstore.open(path, clock=Clock(), config={"log.cleaner.threads": 0}) as store:
    store.create_topic("t", config=settings)
    log = store.partition("t")
    for value, time in zip(made[:20], times):
        log.append(value, key=value, timestamp=time)
    log.append_batch(made[20:40], timestamps=times[20:40], batch_bytes=200)
    log.append_batch(made[40:], timestamps=times[40:], compression="lz4")
    assert values(log) == made
    with open(path.parent / "sink", "wb") as sink:
        log.transfer(sink, 0, 1 << 20, method="read")
(path / ".kafka_cleanshutdown").unlink()
with segstore.open(path, clock=Clock()) as store:
    assert values(store.partition("t")) == made
assert segstore.check(path) == []
counters = {name: ctypes.c_long.in_dll(shim, name).value for name in ("interrupted", "halved")}
print(json.dumps(counters))
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = (os.environ.get("CC") or "cc").split()
    if not shutil.which(compiler[0]):
        pytest.skip("there is no C compiler")
    made = tmp_path_factory.mktemp("shim") / "interrupting.so"
    source = SUPPORT / "faults" / "interrupting.c"
    subprocess.run([*compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(source)], check=True)
    return made


def worked(directory: Path, shim: Path, how: str) -> tuple[dict[str, int], dict[str, bytes | None]]:
    """What the shim counted, and the logs and indexes."""
    directory.mkdir()
    path = [*IMPORTED, *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(directory / "store"), how],
        env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    kept = (".log", ".index", ".timeindex", ".snapshot")
    files = tree(directory / "store" / "t-0").items()
    return json.loads(done.stdout), {name: data for name, data in files if name.endswith(kept)}


def test_interrupted_and_short_calls_leave_the_same_bytes(tmp_path: Path, shim: Path) -> None:
    counted, plain = worked(tmp_path / "plain", shim, "plain")
    assert counted == {"interrupted": 0, "halved": 0}
    counted, found = worked(tmp_path / "interrupted", shim, "interrupted")
    assert min(counted.values()) > 100
    record("interrupted calls", sum(counted.values()))
    assert found == plain
    assert (tmp_path / "interrupted" / "sink").read_bytes() == (tmp_path / "plain" / "sink").read_bytes()
