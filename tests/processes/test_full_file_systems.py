"""Promise: on a real file system without a free byte, or without a free inode, space is freed, stores open,
also after a kill, are read whole and close; writers beside that take each block which becomes free. Standbys
and mirrors wait for room, and are promoted and ended without it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote

import pytest
from mounts import mounting as mounting
from mounts import unshared

COMMON = """
import glob, itertools, os, sys, threading, time, segstore
from segstore import StorageError
kind, path = sys.argv[1:3]
numbers = itertools.count()
roots = [path] if kind == "plain" else [path + str(n) for n in range(3)]
disk = os.path.dirname(path)

def opened():
    return segstore.open(path) if kind == "plain" else segstore.open_replicated(roots)

def fill():
    n = 0
    with open(os.path.join(disk, "filler"), "ab", 0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass

def use_inodes():
    try:
        while True:
            open(os.path.join(disk, f"file-{next(numbers)}"), "x").close()
    except OSError:
        pass

def fails(call, *arguments):
    try:
        call(*arguments)
    except StorageError:
        return True
    return False

def begin(retention=None):
    store = opened()
    for topic in "tu":
        keeps = {"retention.bytes": retention} if retention and topic == "t" else {}
        store.create_topic(topic, config={"segment.bytes": 50000, "segment.index.bytes": 4096, **keeps})
        for _ in range(600):
            store.partition(topic).append(b"z" * 500)
    return store
"""
FREE = """
what, space = sys.argv[3:5]
store = begin(100_000 if what == "sweep" else None)
log = store.partition("t")
(fill if space == "bytes" else use_inodes)()
if space == "bytes":
    while not fails(log.append, b"y" * 500):
        pass
greedy, stop = store.partition("u"), threading.Event()
def append():
    while not stop.is_set():
        fails(greedy.append, b"y" * 500)
beside = [threading.Thread(target=append, daemon=True) for _ in range(2)]
for thread in beside:
    thread.start()
def logs():
    return glob.glob(roots[0] + "/t-0/*.log")
before = len(logs())
if what == "delete_records":
    assert log.delete_records(log.end_offset - 10) == log.start_offset
elif what == "delete_topic":
    store.delete_topic("t")
else:
    if what == "alter_topic":
        store.alter_topic("t", {"retention.bytes": 100_000})
    while not (done := [each.error for each in store.sweep() if each.topic == "t"]):
        time.sleep(0.05)  # a replica's directory hears of new settings later
    assert done == [None], done
stop.set()
for thread in beside:
    thread.join()
while len(logs()) == before:
    time.sleep(0.05)  # replicas hear of a deletion later
assert len(logs()) < before
os.unlink(os.path.join(disk, "filler" if space == "bytes" else "file-0"))
store.partition("u").append(b"there is room")
store.close()
assert [found for root in roots for found in segstore.check(root)] == []
"""
OPEN = """
pid = os.fork()
if not pid:
    store = begin()
    producer = segstore.Producer(store, transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("u", b"open").get(timeout=60)
    fill()
    while not fails(store.partition("t").append, b"y" * 500):
        pass
    fill()
    os.kill(os.getpid(), 9)
assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == 9
for turn in range(2):
    fill()
    store = opened()
    assert len([r for r in store.partition("t")]) >= 600 - 10 * turn
    assert len([r for r in store.partition("u")]) >= 600
    store.partition("t").delete_records(store.partition("t").start_offset + 10)
    fill()
    store.close()
    assert [found for root in roots for found in segstore.check(root)] == []
"""
FOLLOW = """
import logging
from segstore.testing import Broker
logging.basicConfig(level=logging.WARNING)
room, source = sys.argv[3:5]
quick = {
    "metadata.max.age.ms": 50, "fetch.max.wait.ms": 50, "retry.backoff.ms": 5, "reconnect.backoff.ms": 5,
}

def followed(broker):
    if kind == "standby":
        return segstore.follow(broker.bootstrap_servers, path, config=quick)
    return segstore.mirror(broker.bootstrap_servers, path, "[tu]", config=quick)

def until(look):
    end = time.monotonic() + 100
    while not look():
        assert time.monotonic() < end, look
        time.sleep(0.01)

def end_of(follower, topic):
    store = follower.store
    return store.partition(topic).end_offset if topic in store.topics() else -1

def append(store, topic, count):
    for _ in range(count):
        store.partition(topic).append(b"z" * 500)

def says_full(follower):
    return "No space left" in str([each.error for each in follower.store.stats()])

with Broker(source) as broker:
    for topic in "tu":
        broker.store.create_topic(topic, config={"segment.bytes": 50000, "segment.index.bytes": 4096})
        append(broker.store, topic, 3000)
    with followed(broker) as follower:
        until(lambda: end_of(follower, "t") == end_of(follower, "u") == 3000)
        fill()
        append(broker.store, "u", 1000)
        until(lambda: says_full(follower))
        assert not follower.wait(0), "it goes on"
    fill()  # what the close has let go of
    with followed(broker) as follower:
        append(broker.store, "u", 1000)
        until(lambda: says_full(follower))
        if room == "none":
            pass
        elif room == "delete_records":
            broker.store.partition("t").delete_records(-1)
        elif room == "delete_topic":
            broker.store.delete_topic("t")
        else:
            os.unlink(os.path.join(disk, "filler"))
        if room != "none":
            until(lambda: end_of(follower, "u") == 5000)
            until(lambda: not says_full(follower))
    if room == "none":
        fill()
        segstore.promote(path, "dead") if kind == "standby" else segstore.end_mirror(path)
        fill()
        with segstore.open(path) as store:
            assert store.partition("u").end_offset >= 3000
            store.delete_topic("t")
            store.partition("u").append(b"there is room")
    else:
        with segstore.open(path, "r") as store:
            assert [record.offset for record in store.partition("u")] == list(range(5000))
    assert segstore.check(path) == []
"""
pytestmark = [pytest.mark.usefixtures("mounting"), pytest.mark.kind("programs")]


def run(tmp_path: Path, program: str, options: str, *arguments: str) -> None:
    (tmp_path / "program.py").write_text(COMMON + program)
    child = map(quote, [sys.executable, str(tmp_path / "program.py"), arguments[0], "/mnt/s", *arguments[1:]])
    done = unshared(f"mount -t tmpfs -o {options} none /mnt", " ".join(child))
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("what", ["delete_records", "delete_topic", "sweep", "alter_topic"])
@pytest.mark.parametrize(
    ("kind", "space"),
    [("plain", "bytes"), ("plain", "inodes"), ("replicated", "bytes"), ("replicated", "inodes")],
)
def test_space_is_freed(tmp_path: Path, kind: str, what: str, space: str) -> None:
    size = "size=12m" if space == "bytes" else "size=100m,nr_inodes=700"
    run(tmp_path, FREE, size, kind, what, space)


@pytest.mark.parametrize("kind", ["plain", "replicated"])
def test_a_store_opens_after_a_kill(tmp_path: Path, kind: str) -> None:
    run(tmp_path, OPEN, "size=12m", kind)


@pytest.mark.parametrize(
    ("kind", "room"),
    [
        *(("standby", room) for room in ("delete_records", "delete_topic", "another program's file", "none")),
        *(("mirror", room) for room in ("delete_records", "another program's file", "none")),
    ],
)
def test_a_follower_waits_for_room_which_a_deletion_at_the_source_makes(
    tmp_path: Path, kind: str, room: str
) -> None:
    """Over a close and an open on the full disk, too."""
    run(tmp_path, FOLLOW, "size=12m", kind, room, str(tmp_path / "source"))
