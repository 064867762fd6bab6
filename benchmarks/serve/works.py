"""The works: generators that do a part of a server's turn, and give each work's figures.

Threads: one, and those of clients. Figures are of the client's clock, and of the server's processor time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import share_broker

from . import java, librdkafka, raw
from .bench import Bench
from .idle import Idle
from .server import Spent
from .terms import (
    BYTES,
    CACHED,
    CONSUME,
    CPU,
    CPU_GB,
    CPU_MILLION,
    CPU_POLL,
    CPU_REQUEST,
    END_TO_END,
    JAVA,
    LIBRDKAFKA,
    P50,
    P99,
    POLLING,
    PRODUCE,
    RATE,
    REQUESTS,
    RESIDENT,
    SHARE,
    SILENT,
    SMALL_FETCH,
    SMALL_PRODUCE,
    WIDE_METADATA,
    WIDE_PRODUCE,
    WORN,
)

Figures = dict[str, float]
Works = Iterator[tuple[str, Figures]]
Part = Callable[[Bench], Works]

SMALL = 100
"""Bytes of a value."""
WAIT_MS = 500
"""fetch.max.wait.ms, as clients have it by default."""


def by_librdkafka(value_bytes: int, bench: Bench) -> Works:
    count, name = bench.effort.records[value_bytes], LIBRDKAFKA[value_bytes]
    with bench.topic() as topic:
        yield PRODUCE(name), librdkafka.produced(bench, topic, count, value_bytes)
        yield CONSUME(name), librdkafka.consumed(bench, topic, count, value_bytes)


def by_java(value_bytes: int, bench: Bench) -> Works:
    """The rates are the tools' own, without their start; the processor's time is the server's meanwhile."""
    count, name, address = bench.effort.java[value_bytes], JAVA[value_bytes], bench.server.address
    with bench.topic() as topic:
        with bench.server.measured() as spent:
            rate = java.produced(address, topic, count, value_bytes)
        yield PRODUCE(name), {RATE: rate, CPU_MILLION: spent.cpu / count * 1e6}
        with bench.server.measured() as spent:
            rate = java.consumed(address, topic, count)
        yield CONSUME(name), {RATE: rate, CPU_MILLION: spent.cpu / count * 1e6}


def by_share_group(bench: Bench) -> Works:
    """The rate is the tool's own behind its group's first record; the settings of a group come
    first.
    """
    count, address = bench.effort.java[SMALL], bench.server.address
    with bench.topic() as topic:
        java.produced(address, topic, count, SMALL)
        share_broker.set_group(address, share_broker.QUEUE, topic)
        with bench.server.measured() as spent:
            rate = java.shared(address, topic, topic, count)
        yield SHARE, {RATE: rate, CPU_MILLION: spent.cpu / count * 1e6}


def _requests(took: list[float], spent: Spent) -> Figures:
    count = len(took)
    told = {REQUESTS: count / spent.seconds, CPU_REQUEST: spent.cpu / count * 1e6}
    return told | raw.micros(took, (P50, P99))


def _again_and_again(bench: Bench, data: bytes) -> tuple[list[float], Figures]:
    with raw.raw(bench.server.address) as client:
        raw.repeated(client, data, bench.effort.seconds / 10)  # connected, and known to the server
        with bench.server.measured() as spent:
            took = raw.repeated(client, data, bench.effort.seconds)
    return took, _requests(took, spent)


def small_requests(bench: Bench) -> Works:
    """One connection, a request at a time; what was acknowledged is counted."""
    topic = bench.kept(SMALL_PRODUCE)
    with raw.raw(bench.server.address) as client, bench.server.connect() as wire:
        client.exchange(raw.produce(topic, raw.batch(SMALL)))
        before = raw.end_offset(wire, topic)
        data = raw.produce(topic, raw.batch(SMALL))
        with bench.server.measured() as spent:
            took = raw.repeated(client, data, bench.effort.seconds)
        found = raw.end_offset(wire, topic) - before
        assert found == len(took), f"{found} records are there of {len(took)}"
    yield SMALL_PRODUCE, _requests(took, spent)
    yield SMALL_FETCH, _again_and_again(bench, raw.fetch(topic, 0, len(raw.batch(SMALL))))[1]


def end_to_end(bench: Bench) -> Works:
    with bench.topic() as topic:
        took = librdkafka.followed(bench, topic, bench.effort.followed)
    yield END_TO_END, raw.micros(took, (P50, P99))


def cached(bench: Bench) -> Works:
    """Fetches of 1 MiB from the first record on, all of which the page cache holds."""
    records, size = raw.batch_of(raw.WHOLE_BATCH), bench.effort.cached
    if CACHED not in bench.made:
        bench.fill(bench.kept(CACHED), records, size)
    topic, at_once = bench.made[CACHED], raw.BUFFER // len(records)
    offsets = range(0, size // len(records), at_once)
    data = [raw.fetch(topic, offset, raw.BUFFER) for offset in offsets]
    with raw.raw(bench.server.address) as client:
        client.exchange(data[0])
        with bench.server.measured() as spent:
            got = [client.exchange(each) for each in data]
    assert sum(got) >= size, f"{sum(got)} bytes came of {size}"
    yield CACHED, transferred(size, spent)


def transferred(size: int, spent: Spent) -> Figures:
    return {BYTES: size / spent.seconds / 1e6, CPU_GB: spent.cpu / size * 1e9}


def wide(bench: Bench) -> Works:
    """A topic of 1,000 partitions."""
    topic = bench.kept(WIDE_METADATA, bench.effort.partitions)
    yield WIDE_METADATA, _again_and_again(bench, raw.metadata(topic))[1]
    count, partitions = bench.effort.spread, bench.effort.partitions
    yield WIDE_PRODUCE, librdkafka.produced(bench, topic, count, SMALL, partitions)


def idle(bench: Bench) -> Works:
    """Connections that send nothing, and then consumers at the end of a log, which poll as clients do."""
    topic, seconds, server = bench.kept(POLLING), bench.effort.idle_seconds, bench.server
    with ExitStack() as stack, server.connect() as wire:
        end = raw.end_offset(wire, topic)
        consumers = Idle(server.address, bench.effort.connections, stack)
        with server.measured() as spent:
            time.sleep(seconds)
        yield SILENT, {RESIDENT: server.resident(), CPU: 100 * spent.cpu / spent.seconds}
        poll = raw.fetch(topic, end, raw.BUFFER, WAIT_MS)
        consumers.poll(poll, WAIT_MS / 1000)  # all of them wait
        with server.measured() as spent:
            polls = consumers.poll(poll, seconds)
        told = {CPU: 100 * spent.cpu / spent.seconds, CPU_POLL: spent.cpu / max(polls, 1) * 1e6}
        yield POLLING, {RESIDENT: server.resident(), **told}


def worn(bench: Bench) -> Works:
    yield WORN, {RESIDENT: bench.server.resident()}


PARTS: dict[Part, tuple[str, ...]] = {
    **{partial(by_librdkafka, size): (PRODUCE(name), CONSUME(name)) for size, name in LIBRDKAFKA.items()},
    **{partial(by_java, size): (PRODUCE(name), CONSUME(name)) for size, name in JAVA.items()},
    by_share_group: (SHARE,),
    small_requests: (SMALL_PRODUCE, SMALL_FETCH),
    end_to_end: (END_TO_END,),
    cached: (CACHED,),
    wide: (WIDE_METADATA, WIDE_PRODUCE),
    idle: (SILENT, POLLING),
    worn: (WORN,),
}
"""What each part does, in their order; `running` has the start of servers, and bare loops."""
NEEDS_JAVA = frozenset(
    part for part in PARTS if part is by_share_group or (isinstance(part, partial) and part.func is by_java)
)
WARM_UP = {by_share_group: 3, small_requests: 3, worn: 0}
"""Rounds that do not count, where it is not one: Java compiles what was called often enough, and memory needs
none.
"""
