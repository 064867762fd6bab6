"""`RemoteFiles` over a local directory, a real S3 server, and a file system of Python, with faults."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from s3_faults import LOST, S3Faults
from s3_server import SECRET, S3Server

from segstore.archiving import remote as module
from segstore.archiving.remote import PART, RemoteFiles
from segstore.errors import ArchiveError, InvalidArgumentError

Make = Callable[[], RemoteFiles]
BIG = os.urandom(13 << 20)
"""More than one part of an upload."""


class Renaming(fs.FileSystemHandler):  # type: ignore[misc]
    """A file system that pyarrow knows nothing of, over a directory; a move over a file is refused, as HDFS
    does.
    """

    def __init__(self, failing: int = 0) -> None:
        self.below, self.moved, self.failing = fs.LocalFileSystem(), [], failing

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), ()

    def get_type_name(self) -> str:
        return "renaming"

    def create_dir(self, path: str, recursive: bool) -> None:
        self.below.create_dir(path, recursive=recursive)

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        return self.below.get_file_info(selector)

    def move(self, src: str, dest: str) -> None:
        if os.path.exists(dest):
            raise OSError(f"{dest} is there")
        self.moved.append(dest)
        self.below.move(src, dest)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        if self.failing:
            self.failing -= 1
            raise OSError("the server is busy")
        return self.below.open_output_stream(path)


def _passing(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: getattr(self.below, name)(*arguments)


for _name in (
    *("get_file_info", "delete_dir", "delete_dir_contents", "delete_file"),
    *("copy_file", "open_input_stream", "open_input_file", "normalize_path"),
):
    setattr(Renaming, _name, _passing(_name))
Renaming.delete_root_dir_contents = Renaming.open_append_stream = Renaming.delete_dir
Renaming.__abstractmethods__ = frozenset()


@pytest.fixture(params=["local", "s3", "renaming", "subtree"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "s3":
        uri = request.getfixturevalue("s3_bucket").replace("?", "/a/log?")
        return lambda: RemoteFiles(uri)
    if request.param == "renaming":
        return lambda: RemoteFiles(str(tmp_path / "a/log"), fs.PyFileSystem(Renaming()), patience=1)
    if request.param == "subtree":
        (tmp_path / "a").mkdir()
        return lambda: RemoteFiles("log", fs.SubTreeFileSystem(str(tmp_path / "a"), fs.LocalFileSystem()))
    return lambda: RemoteFiles(str(tmp_path / "a/log"))


@pytest.mark.kind("S3 server")
def test_objects_are_written_listed_read_and_deleted(make: Make) -> None:
    remote = make()
    assert remote.list("") == remote.list("claims/") == {}
    assert remote.write("claims/1", [b"one"]) == 3
    assert remote.write("claims/2", (bytearray(b"tw"), memoryview(b"o"))) == 3
    assert remote.write("topics/a b/empty", []) == 0
    assert remote.write("topics/big", iter([BIG[:5], BIG[5:]])) == len(BIG)
    assert remote.list("claims/") == {"claims/1": 3, "claims/2": 3}
    assert make().list("") == {"claims/1": 3, "claims/2": 3, "topics/a b/empty": 0, "topics/big": len(BIG)}
    assert (remote.read("claims/2"), remote.read("topics/a b/empty")) == (b"two", b"")
    assert make().read("topics/big") == BIG
    assert remote.write("claims/1", [b"again"]) == 5
    assert remote.read("claims/1") == b"again"
    remote.delete(["claims/1", "claims/none", "topics/big"])
    assert remote.list("") == {"claims/2": 3, "topics/a b/empty": 0}


@pytest.mark.kind("S3 server")
def test_ranges_end_with_the_object(make: Make) -> None:
    remote = make()
    remote.write("x", [b"0123456789"])
    ranges = [(0, 4), (8, 4), (10, 4), (99, 4), (3, 0)]
    assert [remote.read_range("x", *each) for each in ranges] == [b"0123", b"89", b"", b"", b""]
    for at, there in ((2, b"2345"), (8, b"89.."), (10, b"...."), (99, b"....")):
        buffer = bytearray(b"....")
        assert remote.read_into("x", at, buffer) == 4 - there.count(b".")
        assert bytes(buffer) == there


@pytest.mark.kind("S3 server")
def test_what_is_not_there_is_told(make: Make) -> None:
    remote = make()
    for read in (remote.read, lambda name: remote.read_range(name, 0, 1)):
        with pytest.raises(FileNotFoundError, match="no/such: there is no such object"):
            read("no/such")


@pytest.mark.kind("S3 server")
@pytest.mark.parametrize("size", [3, len(BIG)], ids=["small", "large"])
def test_an_error_of_the_parts_leaves_no_object(
    make: Make, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither if they are held in memory, nor if an upload has begun."""
    remote = make()

    def parts() -> Iterator[bytes]:
        yield BIG[:size]
        raise OSError(5, "the disk is broken")

    for held in (module.HELD, 1):
        monkeypatch.setattr(module, "HELD", held)
        with pytest.raises(OSError, match="the disk is broken") as caught:
            remote.write("x", parts())
        assert not isinstance(caught.value, ArchiveError)
        assert remote.list("") == {}


@pytest.mark.kind("S3 server")
def test_it_travels_to_other_processes(make: Make) -> None:
    remote = make()
    remote.write("x", [b"1"])
    there = pickle.loads(pickle.dumps(remote))
    assert (there.read("x"), there.uri, repr(there)) == (b"1", remote.uri, repr(remote))
    assert there.write("y", [b"22"]) == 2


@pytest.mark.kind("S3 server")
def test_a_forks_child_has_connections_of_its_own(make: Make) -> None:
    remote = make()
    remote.write("x", [b"1"])
    child = os.fork()
    if not child:
        os._exit(0 if remote.read("x") == b"1" and remote.write("y", [b"2"]) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert remote.read("y") == b"2"


def test_unfinished_files_are_seen_by_nobody_and_deleted_later(tmp_path: Path) -> None:
    for given in (None, fs.PyFileSystem(Renaming())):
        remote = RemoteFiles(str(tmp_path / "log"), given)
        remote.write("topics/x", [b"1"])
        left = tmp_path / "log" / "topics" / f"y{PART}"
        left.write_bytes(b"left by a kill")
        assert remote.list("") == {"topics/x": 1}
        assert remote.delete_unfinished() == 0
        assert left.exists()
        assert remote.delete_unfinished(older_ms=-1_000) == 1
        assert not left.exists()


def test_an_unknown_file_system_gets_the_name_last(tmp_path: Path) -> None:
    handler = Renaming(failing=2)
    remote = RemoteFiles(str(tmp_path / "log"), fs.PyFileSystem(handler), patience=30)
    remote.write("x", [b"1"])
    remote.write("x", [b"2"])
    assert (handler.moved, handler.failing) == ([str(tmp_path / "log/x")] * 2, 0)
    assert remote.read("x") == b"2"
    handler.failing = 1000
    impatient = RemoteFiles(str(tmp_path / "log"), fs.PyFileSystem(handler), patience=0)
    with pytest.raises(ArchiveError, match="x: the server is busy"):
        impatient.write("x", [b"3"])
    assert remote.read("x") == b"2"


def test_a_full_disk_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file in place of the directory")
    with pytest.raises(ArchiveError, match=f"{tmp_path}/log: x: "):
        RemoteFiles(str(tmp_path / "log")).write("x", [b"1"])


# --- S3 ------------------------------------------------------------------------------------------


@pytest.fixture
def faults(s3_server: S3Server) -> Iterator[S3Faults]:
    proxy = S3Faults(s3_server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def through(faults: S3Faults, s3_bucket: str, s3_server: S3Server) -> RemoteFiles:
    return RemoteFiles(s3_bucket.replace(str(s3_server.port), str(faults.port)), patience=20)


def _first(count: int, method: str, answer: str) -> Callable[[str, str], str | None]:
    left = [count]

    def fault(asked: str, path: str) -> str | None:
        if asked != method or not left[0]:
            return None
        left[0] -= 1
        return answer

    return fault


@pytest.mark.kind("S3 server")
@pytest.mark.parametrize("answer", ["SlowDown", "InternalError", LOST])
@pytest.mark.parametrize("size", [10, len(BIG)], ids=["small", "large"])
def test_a_request_that_fails_is_made_again(
    faults: S3Faults, through: RemoteFiles, size: int, answer: str
) -> None:
    for method in ("PUT", "GET"):
        faults.fault = _first(4, method, answer)  # more than pyarrow tries
        through.write("x", [BIG[:size]])
        assert through.read("x") == BIG[:size]
        assert through.list("") == {"x": size}


@pytest.mark.kind("S3 server")
def test_a_small_object_is_one_request(faults: S3Faults, through: RemoteFiles) -> None:
    through.write("commits/x", [b"1" * 4000])
    assert [each.split("?")[0].split("/")[0] for each in faults.requests] == ["PUT "]


@pytest.mark.kind("S3 server")
def test_a_server_that_stays_busy_is_told_and_leaves_no_object(
    faults: S3Faults, s3_bucket: str, s3_server: S3Server
) -> None:
    remote = RemoteFiles(s3_bucket.replace(str(s3_server.port), str(faults.port)), patience=0)
    faults.fault = lambda method, path: "SlowDown" if "partNumber=2" in path else None
    with pytest.raises(ArchiveError, match=r"s3://[^:]*: x: .*SLOW_DOWN"):
        remote.write("x", [BIG])
    assert remote.list("") == {}


@pytest.mark.kind("S3 server")
@pytest.mark.parametrize("answer", ["ExpiredToken", "AccessDenied"])
def test_refused_credentials_are_told_at_once(faults: S3Faults, through: RemoteFiles, answer: str) -> None:
    through.write("x", [b"1"])
    faults.fault, before = lambda method, path: answer, len(faults.requests)
    with pytest.raises(ArchiveError, match=r"y: .*AWS Error"):
        through.write("y", [b"1"])
    assert len(faults.requests) == before + 1
    faults.fault = lambda method, path: None
    assert through.write("y", [b"1"]) == 1


@pytest.mark.kind("S3 server")
def test_a_server_that_is_gone_is_waited_for(s3_server: S3Server, s3_bucket: str) -> None:
    remote = RemoteFiles(s3_bucket, patience=0)
    s3_server.kill()
    try:
        with pytest.raises(ArchiveError, match=r"x: .*NETWORK_CONNECTION"):
            remote.write("x", [b"1"])
    finally:
        s3_server.start()
    assert remote.write("x", [b"1"]) == 1
    ended = RemoteFiles(s3_server.uri("no-bucket"))
    ended.end_retries()
    told = []
    for _ in range(2):
        with pytest.raises(ArchiveError, match="NO_SUCH_BUCKET") as caught:
            ended.write("x", [b"1"])
        told.append(str(caught.value))
    assert told[0] == told[1]  # so that it is logged once


@pytest.mark.kind("S3 server")
def test_no_secret_is_told(s3_server: S3Server, s3_bucket: str) -> None:
    bucket = s3_bucket.partition("@")[2].partition("?")[0]
    remote = RemoteFiles(s3_server.uri(f"{bucket}/log", secret=f"not-{SECRET}"))
    with pytest.raises(ArchiveError) as caught:
        remote.write("x", [b"1"])
    told = "".join(traceback.format_exception(caught.value)) + repr(remote) + remote.uri
    assert SECRET not in told
    assert f"s3://{bucket}/log?scheme=http" in told


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("s3://key:secret word@bucket/log", "Cannot parse URI"),
        ("s3://key:sec%2Fword@bucket/log?region=x&password=sec%2Fword", "query parameter"),
        ("unknown://user:sec%2Fword@host/log", "Unrecognized"),
    ],
)
def test_no_secret_of_a_wrong_uri_is_told(uri: str, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told) as caught:
        RemoteFiles(uri)
    text = "".join(traceback.format_exception(caught.value))
    assert not {"secret word", "sec%2Fword", "sec/word"} & {
        each for each in ("secret word", "sec%2Fword", "sec/word") if each in text
    }


@pytest.mark.kind("S3 server")
def test_the_environment_has_endpoint_and_region(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = s3_bucket.partition("?")[0]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_server.port}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert RemoteFiles(plain).write("x", [b"1"]) == 1
