"""An injected error is in the answer to all that was asked, in every version of every API."""

from __future__ import annotations

import random
from typing import Any

import pytest
from drawn_messages import drawn, encoded

from segstore.server.apis import Api, served
from segstore.server.protocol.codec import Struct, decode
from segstore.server.request import Request
from segstore.testing.error_answers import error_answer

CODE = 41
NO_PLACE = {(Api.DESCRIBE_LOG_DIRS, 1), (Api.DESCRIBE_LOG_DIRS, 2)}
"""Their answers name directories, which the request does not."""


def codes_of(value: Any) -> list[int]:
    """All error codes in a structure."""
    if isinstance(value, list):
        return [code for each in value for code in codes_of(each)]
    if not isinstance(value, Struct):
        return []
    named = [getattr(value, n) for n in value.__slots__ if n in ("error_code", "partition_error_code")]
    return [*named, *(code for n in value.__slots__ for code in codes_of(getattr(value, n)))]


@pytest.mark.parametrize("api", Api, ids=lambda api: api.name)
def test_every_version_has_the_code(api: Api, rng: random.Random) -> None:
    low, high = served(api)
    for version in range(low, high + 1):
        body = drawn(f"{api.message}Request", version, rng, lengths=(1, 1))
        request = Request(api, version, None, body, None, lambda body: None)  # type: ignore[arg-type]
        answer = error_answer(request, CODE)
        name = f"{api.message}Response"
        read = decode(name, version, memoryview(encoded(answer, version)))
        assert read == answer
        assert CODE in codes_of(answer) or (api, version) in NO_PLACE, version
