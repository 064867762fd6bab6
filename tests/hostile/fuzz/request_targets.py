"""Fuzzes what a server reads: requests of every API and version, in pieces, and how they are dispatched."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from drawn_messages import drawn

from fuzz.target import Target
from segstore.errors import InvalidRequestError, UnsupportedVersionError
from segstore.protocol.codec import encode, structs
from segstore.protocol.definitions import message
from segstore.server.apis import Api, served
from segstore.server.network import exchange
from segstore.server.network.frames import Frames
from segstore.server.network.memory import Scratch

PIECES = (1, 3, 7, 60, 4096, 1 << 16)
_MOST = 1 << 20


class _Socket:
    """Gives its bytes in pieces of many sizes."""

    def __init__(self, data: bytes) -> None:
        self._left, self._turn = data, len(data)

    def recv_into(self, place: memoryview) -> int:
        self._turn += 1
        part = self._left[: min(len(place), PIECES[self._turn % len(PIECES)])]
        place[: len(part)] = part
        self._left = self._left[len(part) :]
        return len(part)


class _Channel:
    principal, peer, is_open, sasl = "ANONYMOUS", "127.0.0.1", True, None

    def close(self) -> None:
        pass


def _answer(node: None, request: Any) -> Any:
    """A sound response to any request, whose fields can all be read."""
    repr(request.body)
    return structs(f"{request.api.message}Response")()


def requests(data: bytes) -> str:
    """Outcomes: how many requests were answered, and what became of the rest."""
    frames, scratch, socket = Frames(_MOST), Scratch(), _Socket(data)
    answers: list[Api] = []

    def send(api: Api, version: int, correlation_id: int, body: Any) -> None:
        out = bytearray()
        encode(body, version, out)
        answers.append(api)

    try:
        while frames.receive(socket, scratch):  # type: ignore[arg-type]
            while (frame := frames.take()) is not None:
                exchange.begin(frame, None, HANDLERS, _Channel(), send)
            frames.keep()
            if frames.wanted:
                frames.begin()
    except (InvalidRequestError, UnsupportedVersionError) as error:
        return f"{min(len(answers), 3)} answered, then {type(error).__name__}"
    return f"{min(len(answers), 3)} answered, {'a part is left' if not frames.is_empty else 'all read'}"


def _seeds() -> list[bytes]:
    """A request of every version of every API, and a pipeline."""
    rng = Random(19)
    found = []
    for api in Api:
        low, high = served(api)
        found += [_framed(api, version, rng) for version in range(low, high + 1)]
    return [*found, b"".join(rng.sample(found, 20))]


def _framed(api: Api, version: int, rng: Random) -> bytes:
    definition = message(f"{api.message}Request")
    out = bytearray(struct.pack(">ihhih", 0, api, version, rng.randrange(1 << 31), 4) + b"fuzz")
    if version in definition.flexible:
        out.append(0)
    encode(drawn(definition.name, version, rng), version, out)
    return _fixed(bytes(out))


def _fixed(data: bytes) -> bytes:
    """The size of the only request."""
    return struct.pack(">i", len(data) - 4) + data[4:] if len(data) >= 4 else data


HANDLERS = dict.fromkeys(Api, _answer)
TARGETS = {"requests": Target(requests, _seeds, fixed=_fixed, allowed=())}
