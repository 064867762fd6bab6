"""Promise: whatever members, writes, crashes, the clock and the log do, no two members hold a record at a
time, none that was accepted comes again, none comes oftener than its limit, and none is lost; a fetch that
waits is woken. A fault that is planted in the core is found.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
from collections.abc import Iterator

import pytest
from loading import loaded
from places import REPOSITORY

from segstore.errors import SegstoreError
from share_partitions.mutations import FOUND_BY_SEARCH, FOUND_BY_TESTS
from share_partitions.search import search
from share_partitions.spaces import SPACES

pytestmark = pytest.mark.kind("model of share partitions")

LARGE = "SEGSTORE_LARGE_SPACES" in os.environ
MOST = 4_000  # states that are looked at in every run


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()  # a state has no circles
    yield
    gc.enable()


@pytest.mark.parametrize("name", SPACES)
def test_all_properties_hold(name: str) -> None:
    """The number of states is told, so that a change of what is looked at is seen."""
    bounds, states = SPACES[name]
    if states > MOST and not LARGE:
        pytest.skip(f"{states:,} states are for `make model-check`")
    found = search(bounds)
    print(found)
    assert (found.fault, found.states) == ("", states)


@pytest.mark.parametrize("name", FOUND_BY_SEARCH)
def test_the_search_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = FOUND_BY_SEARCH[name]
    monkeypatch.setattr(mutation.owner, mutation.name, mutation.value)
    found = search(SPACES[mutation.space][0])
    print(found)
    assert re.match(mutation.told, found.fault)


@pytest.mark.parametrize("name", FOUND_BY_TESTS)
def test_a_unit_test_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = FOUND_BY_TESTS[name]
    folder = REPOSITORY / "tests" / "unit" / "coordinator" / "share" / "core"
    test = getattr(loaded(folder / f"{mutation.file}.py"), mutation.test)
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    names = [mark.args[0] for mark in marks]
    cases = [dict(zip(names, case, strict=True)) for case in itertools.product(*(m.args[1] for m in marks))]
    for case in cases:
        test(**case)
    monkeypatch.setattr(mutation.owner, mutation.name, mutation.value)
    assert any(_fails(test, case) for case in cases)


def _fails(test, case: dict[str, object]) -> bool:
    try:
        test(**case)
    except (AssertionError, SegstoreError, pytest.fail.Exception):
        return True
    return False
