"""Promise: what a guest of a shared store can't do is refused by an error that says what to do."""

from __future__ import annotations

import copy
import pickle

import pytest

import segstore
from segstore.storage.shared.refusals import refused_in_guest


def test_a_guest_is_told_who_does_what_it_has_asked_for() -> None:
    error = refused_in_guest("create_topic()")
    assert isinstance(error, segstore.IllegalStateError)
    assert str(error).startswith("create_topic(): this process is a guest")
    assert "segstore serve --shared" in str(error)
    assert not error.retriable


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_of_the_host_keeps_what_it_tells(again: object) -> None:
    assert callable(again)
    error = again(segstore.HostUnavailableError("process 4711 is stopped", 4711, True))
    assert (str(error), error.pid, error.alive) == ("process 4711 is stopped", 4711, True)
    assert error.retriable
    plain = segstore.HostUnavailableError("nobody is host")
    assert (plain.pid, plain.alive) == (0, False)
