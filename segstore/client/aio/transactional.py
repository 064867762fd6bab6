"""Transactions of an `AsyncProducer`. Nothing on disk of its own. Threads: see `producer`."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from segstore.client.producer import Producer
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import ClientClosedError, ProducerFencedError
from segstore.logger import Logger

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
log = Logger("segstore")


class Transactional(ABC):
    """The transactions of `Producer` as coroutines. A commit or abort that is cancelled goes on, and the next
    call waits for it; a beginning that is cancelled is taken back.
    """

    _producer: Producer

    @abstractmethod
    async def _call(self, method: Callable[..., T], *arguments: Any) -> T:
        """Run a method in the producer's thread."""

    def transaction(self) -> Transaction:
        """`async with producer.transaction():` begins one, and commits it, or aborts it where an exception
        leaves it.
        """
        return Transaction(self)

    @abstractmethod
    def _begin(self, method: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """As `_call`: what becomes of it."""

    async def begin_transaction(self) -> None:
        """See `Producer.begin_transaction`. Cancelled, it leaves no transaction open."""
        begun: list[bool] = []

        def begin() -> None:
            self._producer.begin_transaction()
            begun.append(True)

        def take_back() -> None:
            if begun:
                self._producer.abort_transaction()

        try:
            await self._call(begin)
        except asyncio.CancelledError:
            with contextlib.suppress(ClientClosedError):  # then closing it has aborted what was open
                self._begin(take_back).add_done_callback(_told)
            raise

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """See `Producer.send_offsets_to_transaction`."""
        await self._call(self._producer.send_offsets_to_transaction, offsets, group_metadata)

    async def commit_transaction(self) -> None:
        """See `Producer.commit_transaction`."""
        await self._call(self._producer.commit_transaction)

    async def abort_transaction(self) -> None:
        """See `Producer.abort_transaction`."""
        await self._call(self._producer.abort_transaction)


def _told(taken_back: asyncio.Future[None]) -> None:
    """Nobody waits for it any more."""
    error = None if taken_back.cancelled() else taken_back.exception()
    if error is not None:
        log.warning("a transaction whose beginning was cancelled could not be aborted: %s", error)


class Transaction:
    """One transaction, as an asynchronous context manager."""

    def __init__(self, producer: Transactional) -> None:
        self._producer = producer

    async def __aenter__(self) -> Self:
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self._producer.commit_transaction()
        elif not isinstance(error, ProducerFencedError):  # then it was aborted already, by the newer producer
            await self._producer.abort_transaction()
