"""Promise: a request that a worker handles is answered or its connection closed, whatever fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from calls import FakeChannel, FakeLoop, node_of

import segstore
from segstore.errors import GroupNotFoundError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.handlers.coordinating import coordinated
from segstore.server.handlers.working import guarded, in_worker, work
from segstore.server.request import Request

_Beaten = structs("HeartbeatResponse")


class SignalledError(BaseException):
    """What is no Exception, as a worker may meet it."""


def fails(error: BaseException) -> Callable[..., Any]:
    def run(*_: object) -> Any:
        raise error

    return run


# name: how a request is handed to a worker, and the code that it is answered with
WAYS: dict[str, tuple[Callable[[Any, Request], object], Code]] = {
    "run returns": (lambda n, r: in_worker(n, r, lambda: _Beaten(error_code=7)), Code(7)),
    "run raises": (lambda n, r: in_worker(n, r, fails(ValueError("x"))), Code.UNKNOWN_SERVER_ERROR),
    "run raises what is known": (
        lambda n, r: in_worker(n, r, fails(GroupNotFoundError("x"))),
        Code.GROUP_ID_NOT_FOUND,
    ),
    "run raises what is no Exception": (
        lambda n, r: in_worker(n, r, fails(SignalledError())),
        Code.UNKNOWN_SERVER_ERROR,
    ),
    "failed makes the answer": (
        lambda n, r: in_worker(n, r, fails(ValueError("x")), lambda _: _Beaten(error_code=7)),
        Code(7),
    ),
    "failed raises": (
        lambda n, r: in_worker(n, r, fails(ValueError("x")), fails(GroupNotFoundError("y"))),
        Code.GROUP_ID_NOT_FOUND,
    ),
    "a coordinator's failed raises": (
        lambda n, r: coordinated(n, r, fails(ValueError("x")), fails(KeyError("y"))),
        Code.UNKNOWN_SERVER_ERROR,
    ),
    "done raises": (lambda n, r: work(n, r, lambda: 1, fails(KeyError("y"))), Code.UNKNOWN_SERVER_ERROR),
    "a later call raises": (
        lambda n, r: n.loop.soon(guarded(r, fails(KeyError("y")))),
        Code.UNKNOWN_SERVER_ERROR,
    ),
}


def handled(store: segstore.Store, api: Api, way: Callable[[Any, Request], object]) -> tuple[list[Any], Any]:
    """The answers to a request that is handed over so, and its connection."""
    answers: list[Any] = []
    node, channel = node_of(store), FakeChannel()
    body = structs(f"{api.message}Request")()
    way(node, Request(api, 4, "test", body, channel, answers.append))
    assert isinstance(node.loop, FakeLoop)
    node.loop.run()
    return answers, channel


@pytest.mark.parametrize(("way", "code"), WAYS.values(), ids=WAYS)
def test_it_is_answered_once(
    way: Callable[[Any, Request], object], code: Code, store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLoop, "work", whatever)
    answers, channel = handled(store, Api.HEARTBEAT, way)
    assert [each.error_code for each in answers] == [code]
    assert channel.is_open


@pytest.mark.parametrize("way", [WAYS[name][0] for name in ("run raises", "failed raises", "done raises")])
def test_without_a_place_for_an_error_the_connection_ends(
    way: Callable[[Any, Request], object], store: segstore.Store
) -> None:
    answers, channel = handled(store, Api.LIST_OFFSETS, way)
    assert (answers, channel.is_open) == ([], False)


def whatever(self: FakeLoop, run: Callable[[], Any], done: Callable[[Any], object], _: bool = False) -> None:
    """What the real loop does: it gives every exception to `done`."""
    try:
        result = run()
    except BaseException as error:
        result = error
    done(result)
