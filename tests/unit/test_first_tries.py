"""What a newcomer tries first, and gets wrong: one error of segstore.errors that says what to do."""

from __future__ import annotations

import builtins
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli import run

import segstore
from segstore.config import TopicConfig
from segstore.errors import (
    InvalidArgumentError,
    InvalidReplicationFactorError,
    InvalidTypeError,
    MissingPackageError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)
from segstore.storage.log import validator


@pytest.fixture
def store(store_dir: Path) -> Any:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"0", b"1", b"2"])
        yield store


@pytest.mark.parametrize("given", [(), ("s",), ("s", "rw"), (Path("s"),)], ids=str)
def test_a_store_that_is_made_by_its_class(given: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is told of its finalizer."""
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(InvalidTypeError, match=r"segstore.open\(path\) opens or makes one"):
        segstore.Store(*given)
    assert ignored == []


def test_times_of_which_the_first_is_above_the_last(store: segstore.Store) -> None:
    with pytest.raises(InvalidArgumentError, match=r"times=\(5, 1\): the first must be at most the last"):
        store.partition("t").read(0, times=(5, 1))
    assert len(store.partition("t").read(0, times=(5, 5))) == 0


@pytest.mark.parametrize("offset", [4, -1])
def test_an_offset_out_of_range_says_which_are_there(offset: int, store: segstore.Store) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets 0 to 2 are there, the log ends at 3$"):
        store.partition("t").read(offset)
    store.partition("t").delete_records(3)
    with pytest.raises(OffsetOutOfRangeError, match=r"the log is empty, and begins and ends at 3$"):
        store.partition("t").read(offset)


HEADERS: dict[str, tuple[Any, str]] = {
    "a dict": (
        {"a": b"b"},
        r"headers is dict: allowed is a list of \(str, bytes or None\); of a dict .*\.items\(\)\)$",
    ),
    "text": ("ab", "headers is str: allowed is a list"),
    "no pair": (["ab"], r"headers\[0\] is 'ab': allowed is a list"),
    "a number": ([("a", b"b"), ("a", 5)], r"headers\[1\] is \(str, int\): allowed is a list"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_one_record(name: str, store: segstore.Store) -> None:
    headers, told = HEADERS[name]
    with pytest.raises(InvalidTypeError, match=f"^{told}"):
        store.partition("t").append(b"x", headers=headers)


@pytest.mark.parametrize(
    ("setting", "other"), [("max.message.bytes", "segment.bytes"), ("segment.bytes", None)]
)
def test_a_record_that_is_too_large_names_the_setting(
    setting: str, other: str | None, store: segstore.Store
) -> None:
    store.create_topic("small", config={setting: 500})
    for call in (store.partition("small").append, lambda value: _send(store, value)):
        with pytest.raises(
            RecordTooLargeError, match=rf"the record needs a batch of .*allowed are 500 \({setting}\)$"
        ):
            call(bytes(600))


def _send(store: segstore.Store, value: bytes) -> None:
    with segstore.Producer(store) as producer:
        producer.send("small", value).get(timeout=60)


def test_a_record_that_expires_at_once_is_told_once(
    store: segstore.Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds since the epoch, given for milliseconds, are in January 1970."""
    monkeypatch.setattr(validator, "_warned", set())
    store.create_topic("kept", config={"retention.ms": 1000, "segment.bytes": 1 << 20})
    store.create_topic("compacted", config={"retention.ms": 1000, "cleanup.policy": "compact"})
    with caplog.at_level(logging.WARNING, "segstore"):
        store.partition("t").append(b"x", timestamp=1_700_000_000)
        store.partition("kept").append(b"x")
        store.partition("compacted").append(b"x", key=b"k", timestamp=1_700_000_000)
        assert caplog.messages == []
        for _ in range(3):
            store.partition("kept").append(b"x", timestamp=1_700_000_000)
        store.partition("kept").append_batch([b"x"], timestamps=[1_700_000_000])
    (told,) = caplog.messages
    assert told.startswith(
        "a record that is stamped 1700000000 (ms since the epoch) is older than its topic's retention.ms=1000"
    )
    assert told.endswith("; a time in seconds is multiplied by 1000")
    assert TopicConfig().retention_ms == -1


NEEDS: dict[str, tuple[str, Callable[[segstore.Store], Any]]] = {
    "to_arrow": ("pyarrow", lambda store: store.partition("t").read(0).to_arrow()),
    "the C stream": ("pyarrow", lambda store: store.partition("t").read(0).__arrow_c_stream__()),
    "poll_arrow": ("pyarrow", lambda store: earliest(store).poll_arrow(1000)),
    "metrics_text": ("prometheus-client", lambda store: store.metrics_text()),
}


def earliest(store: segstore.Store) -> segstore.Consumer:
    return segstore.Consumer(store, "t", auto_offset_reset="earliest")


@pytest.mark.parametrize("name", NEEDS)
def test_a_package_that_is_not_installed_is_named(
    name: str, store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, call = NEEDS[name]
    imported = package.replace("-", "_")
    for module in [
        each for each in sys.modules if each.partition(".")[0] == imported or each == "segstore.records.arrow"
    ]:
        monkeypatch.delitem(sys.modules, module)
    real = builtins.__import__

    def absent(module: str, *args: Any, **kwargs: Any) -> Any:
        if module.partition(".")[0] == imported:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return real(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingPackageError, match=rf"needs {package}.*: pip install {package}$") as caught:
        call(store)
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == imported


def test_check_of_what_is_not_there(tmp_path: Path) -> None:
    for option in ((), ("--repair",)):
        done = run("check", tmp_path / "nope", *option)
        assert done.exit_code == 1
        said = "no such store: is the path right? `segstore create` makes a new one"
        assert done.stderr == f"segstore: {tmp_path}/nope: {said}\n"


HEADERS_OF_MANY: dict[str, tuple[Any, str]] = {
    "a dict": ({"a": b"b"}, r"headers is dict: allowed is, for each record, a sequence"),
    "dicts": ([{"a": b"b"}], r"headers\[0\] is dict: .*; of a dict these are list\(headers\.items\(\)\)$"),
}


@pytest.mark.parametrize("name", HEADERS_OF_MANY)
def test_headers_of_several_records(name: str, store: segstore.Store) -> None:
    headers, told = HEADERS_OF_MANY[name]
    with pytest.raises(InvalidTypeError, match=f"^{told}"):
        store.partition("t").append_batch([b"x"], headers=headers)


@pytest.mark.parametrize("make", ["create_topic", "ensure_topic"])
def test_a_store_of_one_directory_has_one_replica(make: str, store: segstore.Store) -> None:
    told = r"^replication_factor=2: must be 1 in a store of one directory; segstore\.open_replicated"
    with pytest.raises(InvalidReplicationFactorError, match=told):
        getattr(store, make)("two", replication_factor=2)
    assert "two" not in store.topics()
    assert getattr(store, make)("one", replication_factor=1).partitions == 1
