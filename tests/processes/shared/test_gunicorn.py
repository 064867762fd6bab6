"""Promise: workers of gunicorn share a store: what a request was answered is in the log once, also if workers
are killed and reloaded meanwhile; a store that was opened before the fork is told.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from cli import start_program
from waiting import PATIENCE, until
from web_workers import WORKERS, Answer, Gunicorn, Load, gunicorn

import segstore

pytestmark = pytest.mark.kind("members of a shared store")

pytest.importorskip("gunicorn", reason="gunicorn is not installed")

APPLICATION = """
import os
import segstore

store = None


def open_store():
    shared = os.environ["SHARED"]
    return segstore.open(os.environ["STORE"], shared=shared == "True" or shared, timeout=100)


def post_fork(server, worker):
    import application

    application.store = open_store()


def post_worker_init(worker):
    worker.log.info("ready %d", worker.pid)


def worker_exit(server, worker):
    import application

    application.store.close()


def app(environ, start_response):
    try:
        offset = store.partition("events").append(environ["PATH_INFO"].encode())
        status, said = "200 OK", f"{offset} {os.getpid()} {store.role}"
    except segstore.SegstoreError as error:
        status, said = "500 Internal Server Error", type(error).__name__
    start_response(status, [("Content-Type", "text/plain")])
    return [said.encode()]
"""
BEFORE = APPLICATION.replace("store = None", "").replace("application.store = open_store()", "pass")
BEFORE = BEFORE.replace("application.store.close()", "pass") + "\nstore = open_store()\n"
"""One that opens the store when it is imported."""


@pytest.fixture
def store(store_dir: Path) -> Path:
    with segstore.open(store_dir) as made:
        made.create_topic("events", config={"segment.bytes": 1 << 14})
    return store_dir


def running(
    store: Path, place: Path, shared: str, *options: str, application: str = APPLICATION
) -> AbstractContextManager[Gunicorn]:
    (place / "application.py").write_text(application)
    return gunicorn(place, "application", *options, STORE=str(store), SHARED=shared)


def check_log(store: Path, answered: dict[str, Answer], unanswered: set[str]) -> None:
    """Each answered path is in the log at the offset that was told; nothing is there twice, or unasked."""
    assert {answer.status for answer in answered.values()} == {200}
    assert segstore.check(store) == []
    with segstore.open(store) as opened:
        log = opened.partition("events")
        found = {record.offset: record.value.decode() for record in log.scan()}
    assert {path: found.get(int(answer.words[0])) for path, answer in answered.items()} == {
        path: path for path in answered
    }
    counts = Counter(found.values())
    assert {path for path, n in counts.items() if n > 1} == set()
    assert counts.keys() <= answered.keys() | unanswered


# --- hosts --------------------------------------------------------------------------------------


@contextmanager
def served(store: Path) -> Iterator[None]:
    with start_program("serve", "--shared", "--store", store, "--listen", "127.0.0.1:0") as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline()
            yield
            server.send_signal(signal.SIGTERM)
            assert server.wait(PATIENCE) == 0
        finally:
            server.kill()


HOSTS: dict[str, tuple[str, Callable[[Path], AbstractContextManager[object]]]] = {
    "workers alone": ("True", lambda store: nullcontext()),
    "beside segstore serve": ("guest", served),
    "beside a host of the application": ("guest", lambda store: segstore.open(store, shared=True)),
}


@pytest.mark.parametrize("name", HOSTS)
def test_four_workers_append(name: str, store: Path, tmp_path: Path) -> None:
    shared, host = HOSTS[name]
    with host(store), running(store, tmp_path, shared) as asked, Load(asked) as load:
        until(lambda: len({answer.words[1] for answer in list(load.answered.values())}) == WORKERS)
        load.more(50)
    roles = {answer.words[2] for answer in load.answered.values()}
    assert roles == ({"host", "guest"} if shared == "True" else {"guest"})
    assert not load.unanswered
    check_log(store, load.answered, load.unanswered)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTS)
def test_workers_are_killed_and_reloaded_under_load(
    name: str, store: Path, tmp_path: Path, rng: random.Random
) -> None:
    shared, host = HOSTS[name]
    with host(store), running(store, tmp_path, shared) as asked, Load(asked) as load:
        asked.await_workers()
        for turn in range(6):
            before = asked.workers
            if turn % 3 == 2:
                asked.process.send_signal(signal.SIGHUP)
                until(lambda before=before: not {*before} & {*asked.workers})
            else:
                os.kill(victim := chosen(load, before, rng), signal.SIGKILL)
                until(lambda victim=victim: victim not in asked.workers)
            load.more(20)
            asked.await_workers()
    check_log(store, load.answered, load.unanswered)


def chosen(load: Load, workers: list[int], rng: random.Random) -> int:
    """Return the worker that is the host, if one has told so; else any."""
    told = [answer.words for answer in list(load.answered.values())]
    hosts = {int(words[1]) for words in told if words[2:] == ["host"]} & {*workers}
    return rng.choice(sorted(hosts) or workers)


# --- forks --------------------------------------------------------------------------------------

FORKS = {
    "opened before the fork": (BEFORE, Answer(500, ["ForkedError"])),
    "opened in post_fork": (APPLICATION, None),
}


@pytest.mark.parametrize("name", FORKS)
def test_workers_of_a_preloaded_application(name: str, store: Path, tmp_path: Path) -> None:
    application, expected = FORKS[name]
    with running(store, tmp_path, "True", "--preload", application=application) as asked:
        answers = [asked.ask(f"/{n}") for n in range(8)]
    if expected is None:
        check_log(store, {f"/{n}": answer for n, answer in enumerate(answers)}, set())
    else:
        assert answers == [expected] * 8
