"""`open(timeout=)` waits until a store is closed elsewhere; a store that is open in this process says so."""

from __future__ import annotations

import math
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from stores import in_child
from waiting import PATIENCE

import segstore
from segstore import errors

WRONG: Mapping[str, tuple[Any, type[Exception]]] = {
    "below zero": (-1, errors.InvalidArgumentError),
    "no number": ("5", errors.InvalidTypeError),
    "NaN": (math.nan, errors.InvalidArgumentError),
}
OPENS: Mapping[str, Callable[..., Any]] = {
    "plain": lambda root, **more: segstore.open(root / "0", **more),
    "replicated": lambda root, **more: segstore.open_replicated([root / "0", root / "1"], **more),
}


@pytest.fixture(params=OPENS.values(), ids=OPENS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """`open` or `open_replicated`, of a store that is open already."""
    store = request.param(tmp_path)
    store.create_topic("t")
    yield lambda **more: store if more.get("first") else request.param(tmp_path, **more)
    store.close()


@pytest.mark.parametrize("timeout", [None, 0, 0.02])
def test_a_store_that_stays_open_is_an_error_that_names_this_process(
    opened: Callable[..., Any], timeout: float | None
) -> None:
    with pytest.raises(errors.StoreLockedError, match="is open in this process already: use that") as caught:
        opened(timeout=timeout)
    assert (caught.value.pid, caught.value.here) == (os.getpid(), True)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.here) == (str(caught.value), True)
    opened(first=True).partition("t").append(b"still open")


@pytest.mark.parametrize("timeout", [PATIENCE, math.inf])
def test_the_wait_ends_when_the_store_is_closed(opened: Callable[..., Any], timeout: float) -> None:
    threading.Timer(0.1, opened(first=True).close).start()
    with opened(timeout=timeout) as store:
        assert store.partition("t").append(b"mine now") == 0


@pytest.mark.kind("kills")
def test_another_process_is_named_and_waited_for(store_dir: Path) -> None:
    """The child opens the store, and lets it go when it is killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            store = segstore.open(store_dir)
            os.write(writing, b"open")
            signal.pause()
            store.close()
        finally:
            os._exit(0)
    try:
        assert os.read(reading, 4) == b"open"
        with pytest.raises(errors.StoreLockedError, match=rf"in process {child}: open it") as caught:
            segstore.open(store_dir, timeout=0.01)
        assert not caught.value.here
        threading.Timer(0.1, os.kill, (child, signal.SIGKILL)).start()
        with segstore.open(store_dir, timeout=PATIENCE) as store:
            store.create_topic("t")
    finally:
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


@pytest.mark.kind("kills")
def test_a_child_does_not_take_its_parents_store_for_its_own(store: segstore.Store) -> None:
    def child(tell: Callable[[str], None]) -> None:
        with pytest.raises(errors.StoreLockedError) as caught:
            segstore.open(store.path)
        tell(str(caught.value.here))

    assert in_child(child)[1] == ["False"]


def test_an_interrupt_ends_the_wait(store: segstore.Store) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGUSR1)).start()
        with pytest.raises(KeyboardInterrupt):
            segstore.open(store.path, timeout=PATIENCE)
    finally:
        signal.signal(signal.SIGUSR1, before)
    store.create_topic("t")


@pytest.mark.parametrize(("timeout", "error"), WRONG.values(), ids=WRONG)
def test_bad_input(tmp_path: Path, timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="timeout"):
        segstore.open(tmp_path / "s", timeout=timeout)
    assert not (tmp_path / "s").exists()


def test_a_reader_waits_for_nothing(store: segstore.Store) -> None:
    with segstore.open(store.path, "r", timeout=math.inf) as reader:
        assert reader.mode == "r"
