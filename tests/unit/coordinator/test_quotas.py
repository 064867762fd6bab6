"""`Quotas`: which rates are set, which apply to a client, which are on disk; the token bucket compared with a
model.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from hypothesis import given
from hypothesis import strategies as st
from stores import START_MS, Clock

import segstore
from segstore.client.consumer import Consumer
from segstore.client.producer import Producer
from segstore.coordinator.quotas import CONSUMER_BYTE_RATE, DEFAULT, PRODUCER_BYTE_RATE, Entity, quotas
from segstore.coordinator.throttle import Bucket
from segstore.errors import (
    ConfigError,
    CorruptCheckpointError,
    InvalidArgumentError,
    InvalidTypeError,
    ReadOnlyError,
    StorageError,
)
from segstore.storage.meta.client_quotas import from_json

BOTH = {PRODUCER_BYTE_RATE: 100, CONSUMER_BYTE_RATE: 200}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store_dir: Path, clock: Clock) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, clock=clock) as store:
        yield store


# --- the bucket -------------------------------------------------------------------------------


def test_a_burst_waits_as_long_as_kafkas_windows_say() -> None:
    """TokenBucket's own example, and (O - T) / T x W of ClientQuotaManager for the same burst."""
    bucket = Bucket(5, 100, 0)
    assert bucket.take(560, 0) == 12_000
    observed, bound, window = 560 / 100, 5, 100
    assert bucket.wait_ms(0) == round((observed - bound) / bound * window * 1_000)


@given(st.integers(1, 1_000), st.integers(0, 1_000_000))
def test_after_the_throttle_time_the_rate_over_windows_and_wait_is_the_bound(rate: int, burst: int) -> None:
    wait = Bucket(rate, 11, 0).take(burst, 0)
    assert burst * 1_000 <= rate * (11_000 + wait)
    if wait:
        assert burst * 1_000 > rate * (11_000 + wait - 1)


@given(
    st.integers(1, 50),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 10_000)), max_size=40),
)
def test_a_bucket_lets_no_more_through_than_rate_and_burst(
    rate: int, span: int, steps: list[tuple[int, int]]
) -> None:
    """Who waits as told has sent, by when the next request may go, the rate and one burst at most."""
    bucket, now, sent = Bucket(rate, span, 0), 0, []
    for idle, size in steps:
        now += idle
        wait = bucket.wait_ms(now)
        if wait:
            assert bucket.wait_ms(now + wait - 1) == 1
            now += wait
            assert bucket.wait_ms(now) == 0
        bucket.take(size, now)
        sent.append((now, size))
    for i, (began, _) in enumerate(sent):
        for j in range(i, len(sent)):
            before_last = sum(size for _, size in sent[i:j])
            assert before_last <= rate * (sent[j][0] - began) / 1000 + rate * span


BUCKETS: dict[str, tuple[list[tuple[str, int]], int]] = {
    "a new one is full": ([], 0),
    "all at once": ([("take", 1_100)], 0),
    "a byte too much": ([("take", 1_101)], 10),
    "time pays": ([("take", 1_200), ("pass", 400)], 600),
    "idle time is not saved beyond the windows": ([("pass", 10**9), ("take", 1_101)], 10),
    "a clock that goes back adds nothing": ([("take", 1_200), ("pass", -5_000)], 1_000),
    "nor does its way forth take any": ([("take", 1_200), ("pass", -5_000), ("pass", 5_000)], 0),
    "a higher rate pays sooner": ([("take", 1_200), ("rate", 1_000)], 100),
    "a lower rate looks back for the windows only": ([("take", 10_000), ("rate", 1)], 11_000),
    "what a lower rate has saved": ([("rate", 10), ("take", 111)], 100),
}


@pytest.mark.parametrize(("steps", "wait"), BUCKETS.values(), ids=BUCKETS)
def test_what_a_bucket_of_100_bytes_a_second_says(steps: list[tuple[str, int]], wait: int) -> None:
    now = START_MS
    bucket = Bucket(100, 11, now)
    for what, value in steps:
        if what == "pass":
            now += value
            bucket.wait_ms(now)
        elif what == "take":
            bucket.take(value, now)
        else:
            bucket.set_rate(value, 11, now)
    assert bucket.wait_ms(now) == wait


# --- what is set ------------------------------------------------------------------------------

EFFECTIVE: dict[str, tuple[dict[str, dict[str, Any]], dict[str, int]]] = {
    "nothing": ({}, {}),
    "its own": ({"me": BOTH}, BOTH),
    "another's": ({"you": BOTH}, {}),
    "the default": ({DEFAULT: BOTH}, BOTH),
    "its own before the default": (
        {DEFAULT: BOTH, "me": {PRODUCER_BYTE_RATE: 7}},
        {**BOTH, PRODUCER_BYTE_RATE: 7},
    ),
    "text, as a command line has it": ({"me": {PRODUCER_BYTE_RATE: "1024"}}, {PRODUCER_BYTE_RATE: 1024}),
    "a whole float": ({"me": {PRODUCER_BYTE_RATE: 1e6}}, {PRODUCER_BYTE_RATE: 1_000_000}),
}  # fmt: skip


@pytest.mark.parametrize(("given", "found"), EFFECTIVE.values(), ids=EFFECTIVE)
def test_what_holds_for_a_client(store: segstore.Store, given: dict, found: dict) -> None:
    for client, rates in given.items():
        quotas(store).alter(client, rates)
    assert quotas(store).effective("me") == found


def test_what_was_set_is_kept_and_can_be_taken_back(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        assert quotas(store).alter("b", BOTH) == BOTH
        quotas(store).alter(DEFAULT, {CONSUMER_BYTE_RATE: 1})
        assert quotas(store).alter("b", {PRODUCER_BYTE_RATE: None}) == {CONSUMER_BYTE_RATE: 200}
    with segstore.open(store_dir) as store:
        assert quotas(store).describe() == {DEFAULT: {CONSUMER_BYTE_RATE: 1}, "b": {CONSUMER_BYTE_RATE: 200}}
        assert quotas(store).describe("b") == {"b": {CONSUMER_BYTE_RATE: 200}}
        assert quotas(store).describe("a") == {"a": {}}
        assert quotas(store).alter("b", {CONSUMER_BYTE_RATE: None}) == {}
        assert quotas(store).describe() == {DEFAULT: {CONSUMER_BYTE_RATE: 1}}
        with segstore.open(store_dir, mode="r") as reader:
            assert quotas(reader).describe() == {DEFAULT: {CONSUMER_BYTE_RATE: 1}}
            quotas(store).alter(DEFAULT, {CONSUMER_BYTE_RATE: 2})
            assert quotas(reader).effective("me") == {CONSUMER_BYTE_RATE: 2}
            assert quotas(reader) is quotas(reader)
            with pytest.raises(ReadOnlyError):
                quotas(reader).alter("b", BOTH)


BAD: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "an unknown rate": ("c", {"produce_byte_rate": 1}, ConfigError, "did you mean producer_byte_rate"),
    "nothing a second": ("c", {PRODUCER_BYTE_RATE: 0}, ConfigError, "producer_byte_rate=0: must be an int"),
    "a negative rate": ("c", {CONSUMER_BYTE_RATE: -1}, ConfigError, "consumer_byte_rate=-1"),
    "a part of a byte": ("c", {CONSUMER_BYTE_RATE: 1.5}, ConfigError, "consumer_byte_rate=1.5"),
    "too much": ("c", {CONSUMER_BYTE_RATE: 1 << 63}, ConfigError, "consumer_byte_rate=9223372036854775808"),
    "no number": ("c", {CONSUMER_BYTE_RATE: "fast"}, ConfigError, "consumer_byte_rate='fast'"),
    "True": ("c", {CONSUMER_BYTE_RATE: True}, ConfigError, "consumer_byte_rate=True"),
    "an unknown one that is taken back": ("c", {"x": None}, ConfigError, "no setting 'x'"),
    "a client without a name": ("", BOTH, InvalidArgumentError, "client_id=''"),
    "a client that is no str": (b"c", BOTH, InvalidTypeError, "client_id must be a str, not bytes"),
    "rates that are no mapping": ("c", 5, InvalidTypeError, "rates must be a mapping.*not int"),
}  # fmt: skip


@pytest.mark.parametrize(("client", "rates", "error", "match"), BAD.values(), ids=BAD)
def test_bad_input_changes_nothing(
    store: segstore.Store, client: Any, rates: Any, error: type[Exception], match: str
) -> None:
    quotas(store).alter("c", BOTH)
    with pytest.raises(error, match=match):
        quotas(store).alter(client, rates)
    assert quotas(store).describe() == {"c": BOTH}


def test_a_disk_that_refuses_leaves_the_limits_of_before(store_dir: Path) -> None:
    files = FailingFiles({"pwrite", "sync", "rename"}, OSError(errno.ENOSPC, "full"), 0)
    with segstore.open(store_dir, files=files) as store:
        quotas(store).alter("c", {PRODUCER_BYTE_RATE: 1})
        throttle = quotas(store).throttle(PRODUCER_BYTE_RATE, "c")
        for nth in (1, 2, 3):
            files.arm(nth)
            with pytest.raises(StorageError):
                quotas(store).alter("c", {PRODUCER_BYTE_RATE: 2})
            assert quotas(store).effective("c") == {PRODUCER_BYTE_RATE: throttle.bound}
        files.arm(0)
    with segstore.open(store_dir) as store:
        assert quotas(store).effective("c") == {PRODUCER_BYTE_RATE: 1}


# --- a damaged file ---------------------------------------------------------------------------

DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "cut off": b'{"version": 1, "clients": {"c": {"producer_byte',
    "no UTF-8": b"\xff\xfe",
    "a list": b"[]",
    "another version": b'{"version": 2, "clients": {}}',
    "a version that is no number": b'{"version": true, "clients": {}}',
    "a key too much": b'{"version": 1, "clients": {}, "users": {}}',
    "clients in a list": b'{"version": 1, "clients": []}',
    "a client without a name": b'{"version": 1, "clients": {"": {"producer_byte_rate": 1}}}',
    "a client without rates": b'{"version": 1, "clients": {"c": {}}}',
    "an unknown rate": b'{"version": 1, "clients": {"c": {"request_percentage": 1}}}',
    "a rate of 0": b'{"version": 1, "clients": {"c": {"producer_byte_rate": 0}}}',
    "a rate that is text": b'{"version": 1, "clients": {"c": {"producer_byte_rate": "1"}}}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_named_and_check_tells(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "s"
    with segstore.open(path) as store:
        store.create_topic("t")
    file = path / ".segstore" / "quotas.json"
    file.write_bytes(data)
    with segstore.open(path) as store:
        for make in (lambda: quotas(store), lambda: Producer(store), lambda: Consumer(store, "t")):
            with pytest.raises(CorruptCheckpointError, match="no client quotas") as caught:
                make()
            assert caught.value.file == str(file)
        store.partition("t").append(b"the engine goes on")
    assert [finding.path for finding in segstore.check(path)] == [str(file)]
    file.unlink()
    with segstore.open(path) as store, Producer(store):
        assert quotas(store).describe() == {}
    assert segstore.check(path) == []


def test_the_file_is_json_for_people(store: segstore.Store) -> None:
    quotas(store).alter("c", BOTH)
    file = Path(store.path) / ".segstore" / "quotas.json"
    held = json.loads(file.read_bytes())
    assert len(held.pop("crc32c")) == 8
    assert held == {"version": 1, "clients": {"c": BOTH}}
    assert file.with_suffix(".copy").read_bytes() == file.read_bytes()


# --- what clients share -----------------------------------------------------------------------


def test_clients_of_one_id_share_and_others_do_not(store: segstore.Store, clock: Clock) -> None:
    quotas(store).alter(DEFAULT, {PRODUCER_BYTE_RATE: 100})
    mine, same, other = (quotas(store).throttle(PRODUCER_BYTE_RATE, name) for name in "aab")
    assert mine is same
    assert mine.charge(1_200) == same.wait_ms() == 1_000
    assert other.wait_ms() == 0
    assert quotas(store).throttle(CONSUMER_BYTE_RATE, "a").bound is None
    clock.now += 1_000
    assert mine.wait_ms() == 0
    assert quotas(store).metrics() == {
        "Produce.a": {"byte-rate": 120, "throttle-time": 1_000},
        "Produce.b": {"byte-rate": 0, "throttle-time": pytest.approx(float("nan"), nan_ok=True)},
    }


def test_a_client_that_is_made_anew_gets_nothing_back(store: segstore.Store, clock: Clock) -> None:
    quotas(store).alter("c", {PRODUCER_BYTE_RATE: 100})
    quotas(store).throttle(PRODUCER_BYTE_RATE, "c").charge(2_100)
    quotas(store).throttle(PRODUCER_BYTE_RATE, "d")
    assert quotas(store).throttle(PRODUCER_BYTE_RATE, "c").wait_ms() == 10_000
    clock.now += 21_000  # it has paid, and saved all that can be saved: there is nothing to remember
    quotas(store).throttle(PRODUCER_BYTE_RATE, "d")
    assert quotas(store)._used == {}
    assert quotas(store)._live.items() == []


def test_clients_at_work_feel_a_change(store: segstore.Store) -> None:
    throttle = quotas(store).throttle(PRODUCER_BYTE_RATE, "c")
    assert (throttle.bound, throttle.charge(1 << 40), throttle.most_at_once) == (None, 0, 1 << 62)
    quotas(store).alter(DEFAULT, {PRODUCER_BYTE_RATE: 100})
    assert (throttle.bound, throttle.most_at_once) == (100, 1_000)
    assert throttle.charge(2_100) == 10_000
    quotas(store).alter("c", {PRODUCER_BYTE_RATE: 1_000})
    assert throttle.wait_ms() == 1_000
    quotas(store).alter("c", {PRODUCER_BYTE_RATE: None})
    assert (throttle.bound, throttle.wait_ms()) == (100, 10_000)
    quotas(store).alter(DEFAULT, {PRODUCER_BYTE_RATE: None})
    assert (throttle.bound, throttle.wait_ms()) == (None, 0)


def test_the_windows_are_the_stores_settings(store_dir: Path, clock: Clock) -> None:
    config = {"quota.window.num": 3, "quota.window.size.seconds": 2}
    with segstore.open(store_dir, config=config, clock=clock) as store:
        quotas(store).alter("c", {PRODUCER_BYTE_RATE: 100})
        throttle = quotas(store).throttle(PRODUCER_BYTE_RATE, "c")
        assert throttle.most_at_once == 400
        assert throttle.charge(600) == 0
        assert throttle.charge(1) == 10


# --- users ------------------------------------------------------------------------------------

PRECEDENCE = [
    Entity("u", "c"),
    Entity("u", DEFAULT),
    Entity("u", None),
    Entity(DEFAULT, "c"),
    Entity(DEFAULT, DEFAULT),
    Entity(DEFAULT, None),
    Entity(None, "c"),
    Entity(None, DEFAULT),
]
"""Kafka's order: DefaultQuotaCallback.quotaLimit."""


def test_the_nearest_rate_holds(store: segstore.Store) -> None:
    """Each limit gives way to the one that is nearer, also for a client that is at work."""
    held = quotas(store)
    throttle = held.throttle(PRODUCER_BYTE_RATE, "c", "u")
    for bound, entity in reversed([*enumerate(PRECEDENCE, 1)]):
        held.alter_entity(entity, {PRODUCER_BYTE_RATE: bound})
        assert (held.effective("c", "u"), throttle.bound) == ({PRODUCER_BYTE_RATE: bound}, bound)
    assert held.effective("c") == {PRODUCER_BYTE_RATE: 7}
    assert held.effective("d") == {PRODUCER_BYTE_RATE: 8}
    assert held.effective("d", "u") == {PRODUCER_BYTE_RATE: 2}
    assert held.effective("c", "v") == {PRODUCER_BYTE_RATE: 4}
    for bound, entity in enumerate(PRECEDENCE, 1):
        assert throttle.bound == bound
        held.alter_entity(entity, {PRODUCER_BYTE_RATE: None})
    assert (throttle.bound, held.limits()) == (None, {})


def test_each_rate_is_looked_up_by_itself(store: segstore.Store) -> None:
    quotas(store).alter_entity(Entity("u", None), {PRODUCER_BYTE_RATE: 5})
    quotas(store).alter("c", {PRODUCER_BYTE_RATE: 6, CONSUMER_BYTE_RATE: 7})
    assert quotas(store).effective("c", "u") == {PRODUCER_BYTE_RATE: 5, CONSUMER_BYTE_RATE: 7}


SHARING: dict[str, tuple[Entity, list[tuple[str | None, str]], list[tuple[str | None, str]]]] = {
    "a user's": (Entity("u", None), [("u", "c"), ("u", "d")], []),
    "each user's": (Entity(DEFAULT, None), [("u", "c"), ("u", "d")], [("v", "c")]),
    "a user's client": (Entity("u", "c"), [("u", "c")], []),
    "each client's of a user": (Entity("u", DEFAULT), [("u", "c")], [("u", "d")]),
    "a client's of each user": (Entity(DEFAULT, "c"), [("u", "c")], [("v", "c")]),
    "a client's": (Entity(None, "c"), [("u", "c"), ("v", "c"), (None, "c")], []),
    "each client's": (Entity(None, DEFAULT), [("u", "c"), ("v", "c"), (None, "c")], [("u", "d")]),
}
"""A limit, clients that share it, and others that have the same limit for themselves."""


@pytest.mark.parametrize("name", SHARING)
def test_a_rate_is_shared_as_in_kafka(store: segstore.Store, name: str) -> None:
    entity, together, apart = SHARING[name]
    held = quotas(store)
    first, *more = (held.throttle(PRODUCER_BYTE_RATE, client, user) for user, client in together)
    others = [held.throttle(PRODUCER_BYTE_RATE, client, user) for user, client in apart]
    held.alter_entity(entity, {PRODUCER_BYTE_RATE: 100})
    assert first.charge(100_000) > 0
    assert [each.wait_ms() > 0 for each in more] == [True] * len(more)
    assert [(each.bound, each.wait_ms()) for each in others] == [(100, 0)] * len(others)
    late = held.throttle(PRODUCER_BYTE_RATE, "late", "late")
    assert late.wait_ms() == 0


def test_a_debt_to_another_rate_does_not_follow(store: segstore.Store) -> None:
    """A rate of the user's own begins with full credit, and leaves the client id's debt to the others."""
    held = quotas(store)
    held.alter("c", {PRODUCER_BYTE_RATE: 100})
    of_u, of_v = (held.throttle(PRODUCER_BYTE_RATE, "c", user) for user in "uv")
    of_u.charge(100_000)
    held.alter_entity(Entity("u", None), {PRODUCER_BYTE_RATE: 100})
    assert of_u.wait_ms() == 0
    assert of_v.wait_ms() > 0


@pytest.mark.parametrize("entity", [Entity(None, None), Entity("", None), Entity("u", "")])
def test_nobody_has_no_rate(store: segstore.Store, entity: Entity) -> None:
    with pytest.raises(InvalidArgumentError, match="must have a user"):
        quotas(store).alter_entity(entity, BOTH)
    assert quotas(store).limits() == {}


def test_rates_of_users_are_kept(store_dir: Path) -> None:
    limits = {entity: {PRODUCER_BYTE_RATE: bound} for bound, entity in enumerate(PRECEDENCE, 1)}
    with segstore.open(store_dir) as store:
        for entity, rates in limits.items():
            quotas(store).alter_entity(entity, rates)
        assert quotas(store).describe() == {"c": {PRODUCER_BYTE_RATE: 7}, DEFAULT: {PRODUCER_BYTE_RATE: 8}}
    for mode in ("r", "rw"):
        with segstore.open(store_dir, mode=mode) as store:
            assert quotas(store).limits() == limits


DAMAGED: dict[str, Any] = {
    "a version that is to come": {"version": 3, "clients": {}},
    "no version": {"clients": {}},
    "users in a list": {"version": 2, "clients": {}, "users": []},
    "a user without a name": {"version": 2, "clients": {}, "users": {"": {"rates": {PRODUCER_BYTE_RATE: 1}}}},
    "a user without rates": {"version": 2, "clients": {}, "users": {"u": {}}},
    "rates that are empty": {"version": 2, "clients": {}, "users": {"u": {"rates": {}}}},
    "no rate": {"version": 2, "clients": {}, "users": {"u": {"rates": {PRODUCER_BYTE_RATE: 0}}}},
    "another field": {"version": 2, "clients": {}, "users": {"u": {"rate": {PRODUCER_BYTE_RATE: 1}}}},
    "clients in a list": {"version": 2, "clients": {}, "users": {"u": {"clients": []}}},
    "users in version 1": {"version": 1, "clients": {}, "users": {}},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_limits_that_are_not_understood_are_not_believed(name: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        from_json(DAMAGED[name])
