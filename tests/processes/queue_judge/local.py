"""Consumers in the process that has the store: threads, of which some have an event loop. Each goes through
lives of consumers until it is told to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from queue_events import Got, Told

import segstore
from segstore import AcknowledgeType, AsyncShareConsumer, ShareConsumer

from .plan import GROUP, Plan
from .told import Telling, now, pause, verdict

POLL_MS, QUIET_S = 100, 15.0


class LocalConsumer:
    """`is_over` says when to end; `name` is new in each process."""

    def __init__(
        self, store: segstore.Store, plan: Plan, tell: Telling, name: str, is_over: Callable[[], bool]
    ) -> None:
        self.store, self.plan, self.tell, self.name, self.is_over = store, plan, tell, name, is_over
        self.rng = random.Random(f"{plan.seed} {name}")
        self.life = 0

    def run(self) -> None:
        while not self.is_over():
            self.life += 1
            self.live()

    def live(self) -> None:
        raise NotImplementedError

    @property
    def who(self) -> str:
        return f"{self.name}.{self.life}"

    def settings(self, mode: str) -> dict[str, Any]:
        return {
            "group_id": GROUP,
            "share_acknowledgement_mode": mode,
            "share_acquire_mode": self.rng.choice(("batch_optimized", "record_limit")),
            "max_poll_records": self.rng.choice((1, 7, 40, 500)),
        }

    def got(self, polled: Mapping[Any, Iterable[Any]], who: str) -> None:
        for tp, records in polled.items():
            rows = [(each.offset, each.delivery_count, each.value.decode()) for each in records]
            self.tell(Got(who, tuple(tp), rows, now()))

    def callback(self, who: str) -> Callable[[Any, Any], None]:
        def told(offsets: Mapping[Any, set[int]], error: Exception | None) -> None:
            for tp, some in offsets.items():
                text = "" if error is None else f"{type(error).__name__}: {error}"
                self.tell(Told(who, (tp.topic, tp.partition), sorted(some), text, now()))

        return told


class Implicit(LocalConsumer):
    """Each poll accepts what the one before gave."""

    def live(self) -> None:
        consumer = ShareConsumer(self.store, *self.plan.topics, **self.settings("implicit"))
        consumer.set_acknowledgement_commit_callback(self.callback(self.who))
        with contextlib.suppress(_Dropped), consumer:
            for _ in range(self.rng.randrange(3, 30)):
                if self.is_over():
                    return
                self.got(consumer.poll(POLL_MS), self.who)
                pause(self.rng, self.plan.lock_ms)
                if self.rng.random() < 0.2:
                    consumer.commit_sync()
            if self.rng.random() < 0.3:
                raise _Dropped


class _Dropped(Exception):
    """An application fails: what it has is given back."""


class Explicit(LocalConsumer):
    """Acknowledges each record, and commits in all ways."""

    def live(self) -> None:
        consumer = ShareConsumer(self.store, *self.plan.topics, **self.settings("explicit"))
        consumer.set_acknowledgement_commit_callback(self.callback(self.who))
        with contextlib.suppress(_Dropped), consumer:
            for _ in range(self.rng.randrange(3, 40)):
                if self.is_over():
                    return
                polled = consumer.poll(POLL_MS)
                self.got(polled, self.who)
                pause(self.rng, self.plan.lock_ms)
                self._acknowledge(consumer, polled)
            if self.rng.random() < 0.3:
                raise _Dropped

    def _acknowledge(self, consumer: ShareConsumer, polled: Mapping[Any, Iterable[Any]]) -> None:
        records = [record for some in polled.values() for record in some]
        self.rng.shuffle(records)
        for record in records:
            kind = verdict(self.rng, record.value.decode(), may_renew=True)
            consumer.acknowledge(record, AcknowledgeType(kind))
            if self.rng.random() < 0.05:
                consumer.commit_sync()
        how = self.rng.random()
        if how < 0.4:
            consumer.commit_sync()
        elif how < 0.6:
            consumer.commit_async()


class Coroutine(LocalConsumer):
    """Coroutines, whose polls are cancelled now and then."""

    def live(self) -> None:
        asyncio.run(self.work())

    async def work(self) -> None:
        consumer = AsyncShareConsumer(self.store, *self.plan.topics, **self.settings("explicit"))
        await consumer.set_acknowledgement_commit_callback(self.callback(self.who))
        async with consumer:
            for _ in range(self.rng.randrange(3, 30)):
                if self.is_over():
                    return
                polled = await self._poll(consumer)
                self.got(polled, self.who)
                if self.rng.random() < 0.1:
                    await asyncio.sleep(self.plan.lock_ms / 1000 * self.rng.uniform(0.8, 1.4))
                for some in polled.values():
                    for record in some:
                        kind = verdict(self.rng, record.value.decode(), may_renew=True)
                        consumer.acknowledge(record, AcknowledgeType(kind))
                if self.rng.random() < 0.5:
                    await consumer.commit_sync()

    async def _poll(self, consumer: AsyncShareConsumer) -> Any:
        while not self.is_over():
            try:
                seconds = self.rng.choice((0.001, 0.01, 10))
                return await asyncio.wait_for(consumer.poll(POLL_MS), seconds)
            except asyncio.TimeoutError:
                continue
        return {}


class Iteration(LocalConsumer):
    """One record after the other, each of them accepted when the next is asked for."""

    def live(self) -> None:
        asyncio.run(self.work())

    async def work(self) -> None:
        consumer = AsyncShareConsumer(self.store, *self.plan.topics, **self.settings("implicit"))
        await consumer.set_acknowledgement_commit_callback(self.callback(self.who))
        left = self.rng.randrange(5, 300)
        async with consumer:
            stop = asyncio.get_running_loop().create_task(self._ends(consumer))
            async for record in consumer:
                row = record.offset, record.delivery_count or 0, record.value.decode()
                self.tell(Got(self.who, (record.topic, record.partition), [row], now()))
                left -= 1
                if left < 0 or self.is_over():
                    break
                if self.rng.random() < 0.005:
                    await asyncio.sleep(self.plan.lock_ms / 1000 * self.rng.uniform(0.8, 1.4))
            stop.cancel()

    async def _ends(self, consumer: AsyncShareConsumer) -> None:
        """Close when all is over: the iteration waits for records without an end."""
        while not self.is_over():
            await asyncio.sleep(0.1)
        await consumer.close()


class Drain(LocalConsumer):
    """Accepts all, until there is no more, or nothing has come for long: members that were killed have
    partitions until their sessions end.
    """

    def live(self) -> None:
        quiet = self.plan.lock_ms / 1000 + QUIET_S
        since, empty = time.monotonic(), 0
        with ShareConsumer(self.store, *self.plan.topics, **self.settings("implicit")) as consumer:
            consumer.set_acknowledgement_commit_callback(self.callback(self.who))
            while not self.is_over() and (empty < 10 or time.monotonic() < since + quiet):
                polled = consumer.poll(POLL_MS)
                self.got(polled, self.who)
                if polled:
                    since, empty = time.monotonic(), 0
                empty += 1
            consumer.commit_sync()

    def run(self) -> None:
        self.live()


KINDS: dict[str, type[LocalConsumer]] = {
    "explicit": Explicit,
    "implicit": Implicit,
    "asyncio": Coroutine,
    "iteration": Iteration,
    "drain": Drain,
}
