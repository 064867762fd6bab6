"""Every fault of `mutations.py` is found."""

from __future__ import annotations

import itertools
import re

import pytest
from loading import loaded
from places import REPOSITORY

from replicas.mutations import FOUND_BY_SEARCH, FOUND_BY_TESTS
from replicas.search import search

pytestmark = pytest.mark.kind("mutations")


@pytest.mark.parametrize("name", FOUND_BY_SEARCH)
def test_the_search_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = FOUND_BY_SEARCH[name]
    if mutation.owner is not None:
        monkeypatch.setattr(mutation.owner, mutation.name, mutation.value)
    found = search(mutation.world(mutation.bounds), mutation.steps)
    print(found)
    assert re.match("P[1-8]:", found.fault)
    assert len(found.trace) > 0


@pytest.mark.parametrize("name", FOUND_BY_TESTS)
def test_a_unit_test_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = FOUND_BY_TESTS[name]
    test, cases = _test(mutation.file, mutation.test)
    for case in cases:
        test(*case)
    monkeypatch.setattr(mutation.owner, mutation.name, mutation.value)
    failed = 0
    for case in cases:
        try:
            test(*case)
        except (AssertionError, pytest.fail.Exception):
            failed += 1
    assert failed


def _test(file: str, name: str):
    """A test function, and its cases."""
    test = getattr(loaded(REPOSITORY / "tests" / "unit" / "replication" / f"{file}.py"), name)
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    return test, list(itertools.product(*(mark.args[1] for mark in marks)))
