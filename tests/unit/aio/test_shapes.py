"""The shapes of the clients for asyncio: plain methods, coroutines and parameters as in aiokafka."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from segstore.client.aio import AsyncConsumer, AsyncProducer
from segstore.client.consumer import Consumer
from segstore.client.producer import Producer

CONSUMER = """
async __aenter__()
async __aexit__(exc_type, exc, tb)
plain __aiter__()
async __anext__()
plain assign(partitions)
plain assignment()
async beginning_offsets(partitions)
async commit(offsets)
async committed(partition)
async end_offsets(partitions)
async getmany(*partitions, timeout_ms, max_records)
async getone(*partitions)
plain highwater(partition)
plain last_poll_timestamp(partition)
plain last_stable_offset(partition)
async offsets_for_times(timestamps)
plain partitions_for_topic(topic)
plain pause(*partitions)
plain paused()
async position(partition)
plain resume(*partitions)
plain seek(partition, offset)
async seek_to_beginning(*partitions)
async seek_to_committed(*partitions)
async seek_to_end(*partitions)
async start()
async stop()
plain subscribe(topics, pattern, listener)
plain subscription()
async topics()
plain unsubscribe()
"""
PRODUCER = """
async __aenter__()
async __aexit__(exc_type, exc, tb)
async abort_transaction()
async begin_transaction()
async commit_transaction()
async flush()
async partitions_for(topic)
async send(topic, value, key, partition, timestamp_ms, headers)
async send_and_wait(topic, value, key, partition, timestamp_ms, headers)
async send_offsets_to_transaction(offsets, group_id)
async start()
async stop()
plain transaction()
"""
"""The public methods of aiokafka 0.14, and those of the protocols of asyncio."""
SHAPES = [
    pytest.param(ours, line, id=f"{ours.__name__}.{line.split()[1].partition('(')[0]}")
    for ours, table in ((AsyncConsumer, CONSUMER), (AsyncProducer, PRODUCER))
    for line in table.split("\n")
    if line
]
NOT_THERE = {"create_batch", "send_batch"}
"""Of aiokafka's producer; docs/migrating.md says so."""
OTHER_NAMES = {
    "__aexit__": ["kind", "error", "trace"],
    "send_offsets_to_transaction": ["offsets", "group_metadata"],  # Java's name: more than an id is taken
}


def shape(of: type, name: str) -> str:
    """The line of a method in a table."""
    method = getattr(of, name)
    parameters = [
        f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name
        for p in inspect.signature(method).parameters.values()
        if p.name != "self"
    ]
    return f"{kind(method)} {name}({', '.join(parameters)})"


def kind(method: Any) -> str:
    return "async" if inspect.iscoroutinefunction(method) else "plain"


@pytest.mark.parametrize(("ours", "line"), SHAPES)
def test_a_method_is_as_in_aiokafka(ours: type, line: str) -> None:
    """Ours may take more, behind aiokafka's parameters."""
    theirs, name = line.split(" ", 1)[0], line.split()[1].partition("(")[0]
    wanted = OTHER_NAMES.get(name) or [p for p in line.partition("(")[2].rstrip(")").split(", ") if p]
    found = shape(ours, name).partition("(")[2].rstrip(")").split(", ")
    assert kind(getattr(ours, name)) == theirs
    assert found[: len(wanted)] == wanted or not wanted


@pytest.mark.parametrize(
    ("client", "table"), [("AIOKafkaConsumer", CONSUMER), ("AIOKafkaProducer", PRODUCER)]
)
def test_the_table_is_aiokafkas(client: str, table: str) -> None:
    aiokafka = pytest.importorskip("aiokafka", reason="aiokafka is not installed")
    theirs = getattr(aiokafka, client)
    public = {name for name in dir(theirs) if not name.startswith("_") and callable(getattr(theirs, name))}
    public |= {"__aenter__", "__aexit__"} | ({"__aiter__", "__anext__"} & set(dir(theirs)))
    lines = [shape(theirs, name) for name in public - NOT_THERE]
    assert sorted(lines) == sorted(filter(None, table.split("\n")))


def public(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("sync", "ours", "of_threads", "aiokafkas"),
    [
        (
            Consumer,
            AsyncConsumer,
            {"commit_async", "bootstrap_connected", "DEFAULT_CONFIG"},
            {
                *("start", "stop", "getone", "getmany"),
                *("seek_to_committed", "last_stable_offset", "last_poll_timestamp"),
            },
        ),
        (
            Producer,
            AsyncProducer,
            {"init_transactions", "bootstrap_connected", "DEFAULT_CONFIG"},
            {"start", "stop", "send_and_wait", "transaction"},
        ),
    ],
    ids=["consumer", "producer"],
)
def test_the_others_are_those_of_the_client_for_threads(
    sync: type, ours: type, of_threads: set[str], aiokafkas: set[str]
) -> None:
    assert public(sync) - public(ours) == of_threads
    assert public(ours) - public(sync) == aiokafkas


def test_a_method_has_the_parameters_of_the_consumer_for_threads() -> None:
    for name in public(AsyncConsumer) & public(Consumer):
        ours, theirs = (
            list(inspect.signature(getattr(of, name)).parameters) for of in (AsyncConsumer, Consumer)
        )
        assert [p for p in theirs if p not in ("timeout_ms",) or p in ours] == ours, name


def test_close_is_another_name_for_stop() -> None:
    for client in (AsyncConsumer, AsyncProducer):
        assert inspect.iscoroutinefunction(client.close)


def test_what_is_not_there_is_told() -> None:
    page = importlib.import_module("places").REPOSITORY / "docs" / "migrating.md"
    text = page.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in NOT_THERE)
