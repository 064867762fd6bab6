"""The programs of examples/ that need no Spark run, keep what they promise when they are killed, and end on
Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from example_programs import EXAMPLES, ended, said, started
from places import environment
from waiting import PATIENCE, until

import segstore

pytestmark = pytest.mark.kind("examples")


def run(name: str, *arguments: object) -> str:
    """Run a program to its end; return what it printed."""
    with started(EXAMPLES / name, *arguments) as program:
        text, _ = program.communicate(timeout=PATIENCE)
        assert program.returncode == 0
    return text


def end(path: Path, topic: str) -> int:
    """The end offset of partition 0 while another process writes; 0 before it is there."""
    try:
        with segstore.open(path, "r") as store:
            return store.partition(topic).end_offset
    except segstore.SegstoreError:
        return 0


# --- orders ---------------------------------------------------------------------------------------


def orders_of(path: Path) -> dict[str, tuple[str, int]]:
    """Status and cents of all orders, from the events alone."""
    found: dict[str, tuple[str, int]] = {}
    with segstore.open(path, "r") as store:
        for record in store.partition("orders"):
            event = json.loads(record.value)
            _, cents = found.get(record.key.decode(), ("", 0))
            found[record.key.decode()] = (event["type"], cents + event.get("cents", 0))
    return found


def snapshots_of(path: Path) -> tuple[dict[str, tuple[str, int]], int]:
    """The same from the snapshots, and from which event on they may lack some."""
    found, begin = {}, 0
    with segstore.open(path, "r") as store:
        for record in store.partition("order-snapshots"):
            held = json.loads(record.value)
            if record.key == b"next event":
                begin = held
            else:
                found[record.key.decode()] = (held["status"], held["cents"])
    return found, begin


def recovered(path: Path, copy: Path) -> tuple[dict[str, tuple[str, int]], int, int]:
    """What `snapshots_of` and `end` find once a writer was there: a kill may come between the write of an
    event and its publication, and the next start has that event, too.
    """
    shutil.copytree(path, copy)
    with segstore.open(copy):
        """It recovers, if that is needed."""
    return *snapshots_of(copy), end(copy, "orders")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda n: n.name)
def test_orders_are_what_the_events_say(number: signal.Signals, store_dir: Path, tmp_path: Path) -> None:
    with started(EXAMPLES / "orders.py", store_dir) as program:
        until(lambda: end(store_dir, "orders") > 60)
        assert ended(program, number) == (0 if number == signal.SIGINT else -number)
    _, begin, events = recovered(store_dir, tmp_path / "recovered")
    assert 0 < begin <= events
    *_, before, after = [
        [int(n) for n in re.findall(r"\d+", line)] for line in run("orders.py", store_dir, 2).splitlines()
    ]
    assert before[1] == events - begin
    assert number == signal.SIGKILL or before[1] <= 1
    assert after == [len(orders_of(store_dir)), end(store_dir, "orders")]
    assert snapshots_of(store_dir) == (orders_of(store_dir), after[1])


USAGE = {
    "orders.py": ["log", "x"],
    "outbox.py": ["only-a-database"],
    "workers.py": [],
    "jobs.py": ["log", "many"],
    "live_to_parquet.py": ["read", "log"],
    "live_events.py": ["log", "no-port"],
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_arguments_print_the_usage(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *USAGE[name]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.startswith(f"usage: {name} ")) == (2, True), done.stderr
    assert [*tmp_path.iterdir()] == []


# --- outbox ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda n: n.name)
def test_each_account_has_one_event(number: signal.Signals, store_dir: Path, tmp_path: Path) -> None:
    shop = tmp_path / "shop.db"
    with started(EXAMPLES / "outbox.py", shop, store_dir) as program:
        until(lambda: end(store_dir, "accounts") > 30)
        assert ended(program, number) == (0 if number == signal.SIGINT else -number)
    with closing(sqlite3.connect(shop)) as database:  # as if it had been killed between append and delete
        again = json.dumps({"type": "opened", "name": "account-0", "cents": 500})
        database.execute("INSERT OR IGNORE INTO outbox VALUES (1, ?)", (again,))
        database.commit()
    run("outbox.py", shop, store_dir, 5)
    with closing(sqlite3.connect(shop)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM accounts ORDER BY rowid")]
        assert database.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    with segstore.open(store_dir, "r") as store:
        assert [json.loads(record.value)["name"] for record in store.partition("accounts")] == names


# --- web service ------------------------------------------------------------------------------------

SERVE = """
import uvicorn, web_service
config = uvicorn.Config(web_service.app, port=0, log_level="warning")
server = uvicorn.Server(config)
import asyncio
async def main():
    async def tell():
        while not server.started:
            await asyncio.sleep(0.01)
        print("port", server.servers[0].sockets[0].getsockname()[1], flush=True)
    telling = asyncio.create_task(tell())
    await server.serve()
asyncio.run(main())
"""
"""What the command `uvicorn web_service:app` does, on a free port that it tells."""


def asked(url: str, event: object = None) -> object:
    """The answer to a GET, or to a POST of an event."""
    body = None if event is None else json.dumps(event).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_the_service_keeps_what_it_has_answered(number: signal.Signals, store_dir: Path) -> None:
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    with started("-c", SERVE, STORE=str(store_dir)) as program:
        (port,) = said(program, r"port (\d+)")
        url = f"http://127.0.0.1:{port}/events"
        places = [asked(f"{url}/alice", {"page": page}) for page in range(3)]
        partition = places[0]["partition"]  # type: ignore[index]
        assert places == [{"partition": partition, "offset": offset} for offset in range(3)]
        told = asked(f"{url}/{partition}?start=1&most=1")
        assert told == [{"offset": 1, "user": "alice", "event": {"page": 1}}]
        for wrong, status in ((f"{url}/99", 404), (f"{url}/x", 422)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                asked(wrong)
            assert refused.value.code == status
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(f"{url}/alice", "x" * (2 << 20))
        assert refused.value.code == 413
        ended(program, number)
    with segstore.open(store_dir) as store:
        assert bool(store.recovered) == (number == signal.SIGKILL)
        assert [json.loads(v) for v in store.partition("events", partition).read(0).values] == [
            {"page": page} for page in range(3)
        ]


# --- workers ----------------------------------------------------------------------------------------


def results(servers: str, count: int) -> Counter[bytes]:
    """What committed transactions have written, once it is `count` records."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["results"])
    found: Counter[bytes] = Counter()
    try:
        until(lambda: found.update(m.value() for m in consumer.consume(100, 0.1)) or found.total() >= count)
    finally:
        consumer.close()
    return found


def test_each_task_has_one_result_although_a_worker_is_killed(store_dir: Path) -> None:
    with started(EXAMPLES / "workers.py", "serve", store_dir, 2, 0) as program:
        (servers,) = said(program, r"(127\.0\.0\.1:\d+)")
        (pid,) = said(program, r"worker 0 is process (\d+)")
        said(program, r"worker 1 is process (\d+)")
        producer = Producer({"bootstrap.servers": servers})
        for number in range(300):
            producer.produce("tasks", b"task %d" % number, key=b"%d" % number)
            if number == 150:
                producer.flush(PATIENCE)
                results(servers, 1)
                os.kill(int(pid), signal.SIGKILL)
        assert producer.flush(PATIENCE) == 0
        said(program, r"worker 0 is process (\d+)")  # the one in its place
        wanted = Counter(b"2 words: task %d" % number for number in range(300))
        assert results(servers, 300) == wanted
        assert ended(program, signal.SIGTERM) == 0
    with segstore.open(store_dir, "r") as store:
        kept = Counter(
            value
            for number in range(store.topics()["results"].partitions)
            for records in [store.partition("results", number).read(0, isolation_level="read_committed")]
            for value in records.values
        )
    assert kept == wanted


def test_sharing_each_task_has_one_result_although_a_worker_is_killed(store_dir: Path) -> None:
    with started(EXAMPLES / "workers.py", "share", store_dir, 2) as program:
        (pid,) = said(program, r"worker 0 is process (\d+)")
        said(program, r"worker 1 is process (\d+)")
        with segstore.open(store_dir, shared="guest", timeout=PATIENCE) as store:
            logs = [store.partition("tasks", number) for number in range(8)]
            for number in range(300):
                logs[number % 8].append(b"task %d" % number)
                if number == 150:
                    until(lambda: end(store_dir, "results") > 0)
                    os.kill(int(pid), signal.SIGKILL)
            said(program, r"worker 0 is process (\d+)")  # the one in its place
            wanted = [[b"2 words: task %d" % n for n in range(first, 300, 8)] for first in range(8)]
            shared = [store.partition("results", number) for number in range(8)]
            until(lambda: [log.end_offset for log in shared] == list(map(len, wanted)))
        assert ended(program, signal.SIGTERM) == 0
    with segstore.open(store_dir, "r") as store:
        found = [[each.value for each in store.partition("results", number)] for number in range(8)]
    assert found == wanted


# --- jobs -------------------------------------------------------------------------------------------


def jobs_of(path: Path) -> tuple[dict[bytes, str], list[bytes], list[bytes]]:
    """The kind of each job by its place; the places of jobs that are done, and of those set aside."""
    with segstore.open(path, "r") as store:
        kinds = {
            b"%d-%d" % (number, record.offset): json.loads(record.value)["kind"]
            for number in range(2)
            for record in store.partition("jobs", number)
        }
        done = [record.value for record in store.partition("done")]
        aside = [
            found["__dlq.errors.partition"] + b"-" + found["__dlq.errors.offset"]
            for record in store.partition("dlq.jobs")
            for found in [dict(record.headers)]
        ]
    return kinds, done, aside


def test_each_job_is_done_or_set_aside_and_these_are_put_in_again(store_dir: Path) -> None:
    *_, last = run("jobs.py", store_dir, 24).splitlines()
    assert last == "24 of 24 jobs are done or set aside"
    kinds, done, aside = jobs_of(store_dir)
    assert Counter(kinds[place] for place in aside) == {"broken": 2, "stubborn": 2}
    assert set(done) == kinds.keys() - set(aside)
    told = run("jobs.py", store_dir, "--again").splitlines()
    shown = [re.sub(r"offset \d+", "offset N", line) for line in told]
    assert sorted(line.partition("(")[2] for line in shown) == [
        *["broken) from offset N, delivered 1 times: Offset rejected by client."] * 2,
        *["stubborn) from offset N, delivered 3 times: Offset delivery count exceeded the threshold."] * 2,
    ]
    *_, last = run("jobs.py", store_dir, 0).splitlines()
    assert last == "28 of 28 jobs are done or set aside"
    kinds, done, aside = jobs_of(store_dir)
    assert (len(kinds), len(set(done)), len(aside)) == (28, 24, 4)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_no_job_is_lost(number: signal.Signals, store_dir: Path) -> None:
    with started(EXAMPLES / "jobs.py", store_dir) as program:
        until(lambda: end(store_dir, "done") > 20)
        assert ended(program, number) == (-number if number == signal.SIGKILL else 0)
    run("jobs.py", store_dir, 0)
    kinds, done, aside = jobs_of(store_dir)
    assert {*done, *aside} == kinds.keys()
    assert {kinds[place] for place in aside} <= {"broken", "stubborn", "deadly", "flaky"}


# --- all of them ------------------------------------------------------------------------------------


def test_the_list_has_them_all() -> None:
    listed = re.findall(
        r"^\| \[(\w+\.py)\]\(\1\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))


def test_a_port_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, EXAMPLES / "workers.py", "serve", "log", "1", port],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert done.stderr.count("\n") == 1
