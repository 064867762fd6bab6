"""The checkpoint store's server, with the requests of Hadoop's client: operations, RENAME's rules, syncs,
faults.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checkpoint_store import QUIET, Hadoop, held, served
from faults import SYNCS, CountingFiles, FailingFiles
from stores import killed
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.spark import checkpoints

EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"
MISSING = "java.io.FileNotFoundException"
IO = "java.io.IOException"


# --- operations --------------------------------------------------------------------------------------


def test_a_micro_batch_as_spark_writes_it(store_dir: Path) -> None:
    with served(store_dir) as hadoop:
        assert hadoop.mkdirs("/q/offsets").told == {"boolean": True}
        data = {"/q/offsets/0": b"v1\n{}", "/q/state/0/0/1.delta": b"d" * 300_000, "/q/commits/0": b""}
        for path, body in data.items():
            assert hadoop.put(path, body).told == {"boolean": True}
        for path, body in data.items():
            assert hadoop.open(path).body == body
        assert hadoop.open("/q/state/0/0/1.delta", offset=299_990, length=100).body == b"d" * 10
        assert hadoop.names("/q") == ["commits", "offsets", "state"]
        assert hadoop.names("/q/offsets/0") == [""]
        status = hadoop.get("/q/offsets/0", "GETFILESTATUS").told["FileStatus"]
        assert (status["type"], status["length"], status["pathSuffix"]) == ("FILE", 5, "")
        assert hadoop.get("/q", "GETFILELINKSTATUS").told["FileStatus"]["type"] == "DIRECTORY"
        summary = hadoop.get("/", "GETCONTENTSUMMARY").told["ContentSummary"]
        assert (summary["fileCount"], summary["directoryCount"], summary["length"]) == (3, 7, 300_005)
        (block,) = hadoop.get("/q/commits", "LISTSTATUS_BATCH").told["DirectoryListing"]["partialListing"][
            "FileStatuses"
        ]["FileStatus"]
        assert block["pathSuffix"] == "0"
        assert hadoop.delete("/q/offsets/0").told == {"boolean": True}
        assert hadoop.delete("/q/offsets/0").told == {"boolean": False}
        assert hadoop.open("/q/offsets/0").java == MISSING
        assert hadoop.get("/q", "CHECKACCESS").status == 200


@pytest.mark.parametrize("name", ["a b", "a%20b", "ü€𝄞", "a+b&c=d?e#f", "a;b"])
def test_odd_names(store_dir: Path, name: str) -> None:
    with served(store_dir) as hadoop:
        assert hadoop.put(f"/{name}/{name}", b"x").told == {"boolean": True}
        assert hadoop.names("/") == [name]
        assert hadoop.open(f"/{name}/{name}").body == b"x"


REFUSED: dict[str, tuple[Callable[[Hadoop], Any], int, str]] = {
    "open nothing": (lambda h: h.open("/no"), 404, MISSING),
    "open a directory": (lambda h: h.open("/d"), 404, MISSING),
    "open behind the end": (lambda h: h.open("/d/f", offset=2), 403, IO),
    "a bad offset": (lambda h: h.open("/d/f", offset="x"), 400, "java.lang.IllegalArgumentException"),
    "list nothing": (lambda h: h.get("/no", "LISTSTATUS"), 404, MISSING),
    "status of nothing": (lambda h: h.get("/no", "GETFILESTATUS"), 404, MISSING),
    "create what is there": (lambda h: h.create("/d/f", b"x"), 403, EXISTS),
    "create a directory": (lambda h: h.create("/d", b"x", True), 403, EXISTS),
    "create below a file": (
        lambda h: h.create("/d/f/x", b""),
        403,
        "org.apache.hadoop.fs.ParentNotDirectoryException",
    ),
    "delete a full directory": (lambda h: h.delete("/d"), 403, IO),
    "rename, with options": (lambda h: h.rename("/d/f", "/d/g", renameoptions="NONE"), 403, EXISTS),
    "rename nothing, with options": (lambda h: h.rename("/no", "/x", renameoptions="NONE"), 404, MISSING),
    "append": (
        lambda h: h.ask("POST", h.target("/d/f", "APPEND")),
        400,
        "java.lang.UnsupportedOperationException",
    ),
    "no operation": (lambda h: h.get("/d/f", ""), 400, "java.lang.UnsupportedOperationException"),
    "dots": (lambda h: h.open("/d/../d/f"), 400, "java.lang.IllegalArgumentException"),
    "another prefix": (lambda h: h.ask("GET", "/x?op=OPEN"), 400, "java.lang.IllegalArgumentException"),
    "no UTF-8": (
        lambda h: h.ask("GET", f"/webhdfs/v1/{h.secret}/%ff?op=OPEN"),
        400,
        "java.lang.IllegalArgumentException",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(store_dir: Path, name: str) -> None:
    run, status, java = REFUSED[name]
    with served(store_dir) as hadoop:
        hadoop.create("/d/f", b"f")
        hadoop.create("/d/g", b"g")
        before = held(hadoop.ck.tree)
        answer = run(hadoop)
        assert (answer.status, answer.java) == (status, java)
        assert held(hadoop.ck.tree) == before


def test_only_with_the_secret(store_dir: Path) -> None:
    with served(store_dir) as hadoop:
        hadoop.create("/f", b"f")
        for secret in ("", "x", hadoop.secret[:-1], hadoop.secret + "x"):
            other = Hadoop(hadoop.ck, secret)
            for answer in (other.open("/f"), other.create("/g", b""), other.get("/", "LISTSTATUS")):
                assert answer.status in (400, 403)
                assert hadoop.secret.encode() not in answer.body
            other.connection.close()
        root = Hadoop(hadoop.ck, "")
        assert root.get("", "GETHOMEDIRECTORY").told == {"Path": "/"}
        assert root.get("", "GETSERVERDEFAULTS").told["FsServerDefaults"]["replication"] == 1
        root.connection.close()
        assert hadoop.rename("/f", f"/../{hadoop.secret}/g").status == 400
        stolen = hadoop.ask("PUT", hadoop.target("/f", "RENAME", destination="/other/g"))
        assert stolen.java == "org.apache.hadoop.security.AccessControlException"
        assert held(hadoop.ck.tree) == {"/": None, "/f": b"f"}


def test_bad_arguments(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        for options in ({"sync": "always"}, {"secret": ""}, {"secret": "a/b"}, {"secret": "ü"}):
            with pytest.raises(errors.InvalidArgumentError):
                checkpoints(store, **options)
        with checkpoints(store, secret="s-1_") as ck:
            assert ck.url("q") == f"segstore://127.0.0.1:{ck.port}/s-1_/q"
            assert ck.url(scheme="webhdfs") == f"webhdfs://127.0.0.1:{ck.port}/s-1_"
            for bad in (lambda: ck.url("../x"), lambda: ck.url("x", "file"), lambda: ck.fail("OPNE")):
                with pytest.raises(errors.InvalidArgumentError):
                    bad()
            with pytest.raises(errors.InvalidArgumentError):
                ck.fail(nth=0)
            with pytest.raises(OSError, match="in use"):
                checkpoints(store, port=ck.port)


# --- RENAME's rules ----------------------------------------------------------------------------------

RULES = {
    "state is replaced": ("/q/state/0/0/1.delta", None, (200, {"boolean": True}), b"new"),
    "offsets are kept": ("/q/offsets/0", None, (200, {"boolean": False}), b"old"),
    "commits are kept": ("/q/commits/0", None, (200, {"boolean": False}), b"old"),
    "others are kept": ("/q/metadata", None, (200, {"boolean": False}), b"old"),
    "the nearest name counts": ("/state/q/offsets/0", None, (200, {"boolean": False}), b"old"),
    "offsets below state": ("/offsets/state/0/1.delta", None, (200, {"boolean": True}), b"new"),
    "a query of that name": ("/state", None, (200, {"boolean": False}), b"old"),
    "NONE refuses state too": ("/q/state/0/0/1.delta", "NONE", (403, None), b"old"),
    "OVERWRITE": ("/q/offsets/0", "OVERWRITE", (200, None), b"new"),
}


@pytest.mark.parametrize("name", RULES)
def test_rename_over_a_file(store_dir: Path, name: str) -> None:
    path, options, expected, left = RULES[name]
    query = {} if options is None else {"renameoptions": options}
    with served(store_dir) as hadoop:
        hadoop.create(path, b"old")
        hadoop.create("/tmp", b"new")
        answer = hadoop.rename("/tmp", path, **query)
        told = answer.told if answer.body and answer.status == 200 else None
        assert (answer.status, told) == expected
        assert hadoop.open(path).body == left
        assert (hadoop.open("/tmp").status == 404) == (left == b"new")


PLAIN = {
    "into a directory": ("/f", "/d", True, "/d/f"),
    "into a directory that has one": ("/g", "/d", False, "/g"),
    "to a parent that is not there": ("/f", "/no/f", False, "/f"),
    "nothing": ("/no", "/x", False, None),
    "into itself": ("/d", "/d/e", False, "/d"),
    "to itself": ("/f", "/f", True, "/f"),
    "a directory": ("/d", "/e", True, "/e/g"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_rename_as_hdfs(store_dir: Path, name: str) -> None:
    source, target, done, there = PLAIN[name]
    with served(store_dir) as hadoop:
        for path in ("/f", "/g", "/d/g"):
            hadoop.create(path, path.encode())
        assert hadoop.rename(source, target).told == {"boolean": done}
        if there is not None:
            assert hadoop.get(there, "GETFILESTATUS").status == 200


def test_a_rename_that_is_sent_again(store_dir: Path) -> None:
    """As Java does by itself where a connection is cut; but another file of that name is another file."""
    with served(store_dir) as hadoop:
        hadoop.create("/q/offsets/.0.tmp", b"0")
        hadoop.ck.drop("RENAME", after=True)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            hadoop.rename("/q/offsets/.0.tmp", "/q/offsets/0")
        assert hadoop.rename("/q/offsets/.0.tmp", "/q/offsets/0").told == {"boolean": True}
        assert hadoop.rename("/q/offsets/.1.tmp", "/q/offsets/0").told == {"boolean": False}
        hadoop.create("/q/offsets/0", b"other", overwrite=True)
        assert hadoop.rename("/q/offsets/.0.tmp", "/q/offsets/0").told == {"boolean": False}


# --- durability --------------------------------------------------------------------------------------

SYNCED = {"none": 0, "batch": 1, "commit": 2, "file": 4}


@pytest.mark.parametrize("sync", SYNCED)
def test_syncs_of_a_micro_batch(store_dir: Path, sync: str) -> None:
    counting = CountingFiles()
    with served(store_dir, sync, files=counting) as hadoop:
        for batch in range(3):
            counting.clear()
            for name in ("offsets/%d", "state/0/0/%d.delta", "state/0/1/%d.delta", "commits/%d"):
                hadoop.put("/q/" + name % batch, b"x")
            assert counting.count("sync") == SYNCED[sync]
            assert counting.count("sync_dir") <= (batch == 0 and sync != "none")


def test_what_a_batch_needs_is_durable_before_it_runs(store_dir: Path) -> None:
    """When offsets/1 is acknowledged, batch 0 with its state and its commit is on disk, and the plan of 1."""
    with served(store_dir, "batch") as hadoop:
        log = hadoop.ck.tree.log
        for name in ("offsets/0", "state/0/0/1.delta", "commits/0"):
            hadoop.put(f"/q/{name}", b"x")
        assert log.partition_for_write().recovery_point < log.end_offset
        hadoop.put("/q/offsets/1", b"x")
        assert log.partition_for_write().recovery_point == log.end_offset


def test_a_sync_that_fails_is_told(tmp_path: Path) -> None:
    failing = FailingFiles(SYNCS, OSError(5, "bad disk"), nth=0)
    with segstore.open(tmp_path / "store", files=failing) as store:
        ck = checkpoints(store, config=QUIET)
        hadoop = Hadoop(ck)
        assert hadoop.create("/q/offsets/.0.tmp", b"0").status == 201
        failing.arm()
        answer = hadoop.rename("/q/offsets/.0.tmp", "/q/offsets/0")
        assert (answer.status, answer.java) == (403, IO)
        assert hadoop.create("/q/x", b"0").java == IO
        hadoop.connection.close()
        with pytest.raises(errors.StorageError):
            ck.close()


def test_what_was_acknowledged_is_there_after_a_kill(store_dir: Path) -> None:
    with served(store_dir) as hadoop:
        for n in range(20):
            hadoop.put(f"/q/offsets/{n}", b"%d" % n)
        copy = killed(store_dir, store_dir.parent / "copy")
    with served(copy) as hadoop:
        assert [hadoop.open(f"/q/offsets/{n}").body for n in range(20)] == [b"%d" % n for n in range(20)]


# --- bodies and connections --------------------------------------------------------------------------


def test_nothing_waits_for_a_body(store_dir: Path) -> None:
    """A changelog's CREATE is open for a whole task; a client that goes away within it leaves nothing."""
    with served(store_dir) as hadoop:
        slow = socket.create_connection(("127.0.0.1", hadoop.ck.port))
        target = hadoop.target("/q/slow", "CREATE", data="true")
        slow.sendall(f"PUT {target} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nslow\r\n".encode())
        assert hadoop.put("/q/quick", b"quick").told == {"boolean": True}
        assert hadoop.names("/q") == ["quick"]
        slow.sendall(b"3\r\ner!\r\n0\r\n\r\n")
        assert slow.recv(100).startswith(b"HTTP/1.1 201 Created\r\n")
        assert hadoop.open("/q/slow").body == b"slower!"
        slow.sendall(f"PUT {hadoop.target('/q/half', 'CREATE', data='true')} HTTP/1.1\r\n".encode())
        slow.sendall(b"Transfer-Encoding: chunked\r\n\r\n4\r\nha")
        slow.close()
        until(lambda: len(hadoop.ck._server._open) == 1)
        assert hadoop.names("/q") == ["quick", "slow"]


RAW = {
    "nonsense": (b"hello\r\n\r\n", b"HTTP/1.1 400 "),
    "no such version": (b"GET / HTTP/2\r\n\r\n", b"HTTP/1.1 400 "),
    "a header without colon": (b"GET / HTTP/1.1\r\nhello\r\n\r\n", b"HTTP/1.1 400 "),
    "a length that is none": (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 400 "),
    "an encoding": (b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", b"HTTP/1.1 400 "),
    "too many headers": (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"HTTP/1.1 400 "),
    "a line without end": (b"GET /" + b"x" * 70_000, b"HTTP/1.1 400 "),
    "a bad chunk": (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", b""),
    "closed by the client": (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"HTTP/1.1 400 "),
    "an old client": (b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1.1 400 "),
}


@pytest.mark.parametrize("name", RAW)
def test_bytes_that_are_no_request(store_dir: Path, name: str) -> None:
    sent, begins = RAW[name]
    with served(store_dir) as hadoop:
        with socket.create_connection(("127.0.0.1", hadoop.ck.port), timeout=PATIENCE) as raw:
            with suppress(OSError):  # where it was answered and closed already
                raw.sendall(sent)
                raw.shutdown(socket.SHUT_WR)
            found = b""
            try:
                while part := raw.recv(4096):
                    found += part
            except ConnectionResetError:
                assert sent.endswith(b"x" * 100)  # it was not read to its end
            assert found.startswith(begins) or not found
        assert hadoop.create("/f", b"f").status == 201


def test_expect_continue(store_dir: Path) -> None:
    with served(store_dir) as hadoop, socket.create_connection(("127.0.0.1", hadoop.ck.port)) as raw:
        head = f"PUT {hadoop.target('/f', 'CREATE', data='true')} HTTP/1.1\r\nExpect: 100-continue\r\n"
        raw.sendall(head.encode() + b"Content-Length: 3\r\n\r\n")
        assert raw.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(b"abc")
        assert raw.recv(100).startswith(b"HTTP/1.1 201 ")
        assert hadoop.open("/f").body == b"abc"


def test_many_at_once(store_dir: Path) -> None:
    """Clients that race for one name: one wins, each time."""
    won: list[int] = []

    def run(number: int) -> None:
        mine = Hadoop(hadoop.ck)
        for n in range(10):
            mine.create(f"/q/offsets/.{n}.{number}", b"%d" % number)
            if mine.rename(f"/q/offsets/.{n}.{number}", f"/q/offsets/{n}").told["boolean"]:
                won.append(n)
        mine.connection.close()

    with served(store_dir, "batch") as hadoop:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == list(range(10))
        before = held(hadoop.ck.tree)
    with served(store_dir) as hadoop:
        assert held(hadoop.ck.tree) == before


def test_close_cuts_what_is_open(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        ck = checkpoints(store)
        hadoop = Hadoop(ck)
        hadoop.create("/f", b"f")
        ck.close()
        ck.close()
        with pytest.raises(OSError):
            Hadoop(ck, hadoop.secret).open("/f")
        hadoop.connection.close()
        assert not [t for t in threading.enumerate() if t.name.startswith(f"segstore-http-{ck.port}")]
        with checkpoints(store, secret=hadoop.secret) as again:
            assert Hadoop(again).open("/f").body == b"f"
