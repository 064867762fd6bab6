"""What is known of Kafka's messages, and which versions of them clients are told."""

from __future__ import annotations

import subprocess
import sys

import pytest

from segstore.protocol.definitions import NEVER, Versions, message, snake_case, versions
from segstore.server.apis import Api, ranges, served


@pytest.mark.parametrize("api", Api, ids=lambda api: api.name)
def test_an_api_has_a_request_and_a_response(api: Api) -> None:
    request, response = message(f"{api.message}Request"), message(f"{api.message}Response")
    assert request.api_key == response.api_key == api
    assert request.flexible == response.flexible
    assert response.valid.low <= request.valid.low <= request.valid.high <= response.valid.high


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("4-18", Versions(4, 18)),
        ("7", Versions(7, 7)),
        ("none", NEVER),
        (None, NEVER),
        ("12+", Versions(12, 1 << 15)),
    ],
)
def test_ranges_are_read(text: str | None, read: Versions) -> None:
    assert versions(text) == read


@pytest.mark.kind("programs")
def test_a_message_is_parsed_when_it_is_asked_for() -> None:
    """A start waits for those of its first requests only."""
    code = """
from segstore.protocol.definitions import message, messages
message("FetchRequest")
print(sorted(messages()._parsed), len(messages()) > 100)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['FetchRequest'] True\n"


def test_nothing_is_in_no_range() -> None:
    assert 0 not in NEVER
    assert 0 not in versions("1+")
    assert 1 in versions("1+")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("TransactionTimeoutMs", "transaction_timeout_ms"),
        ("V3AndBelowTopics", "v3_and_below_topics"),
        ("ISRNodes", "isr_nodes"),
        ("IsrNodes", "isr_nodes"),
    ],
)
def test_names_of_fields(theirs: str, ours: str) -> None:
    assert snake_case(theirs) == ours


def test_produce_is_advertised_from_0_and_served_from_3() -> None:
    assert ranges([Api.PRODUCE, Api.FETCH]) == [(0, 0, 13), (1, 4, 18)]
    assert served(Api.PRODUCE) == Versions(3, 13)
