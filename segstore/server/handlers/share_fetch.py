"""ShareFetch: records that a member of a share group acquires, at once or when there are some, and its
acknowledgements of others (KIP-932, KIP-1206, KIP-1222; Kafka: KafkaApis.handleShareFetchRequest,
DelayedShareFetch).

Threads: the loop's; the share coordinator is asked in worker threads.

Records are acquired for one answer. If that can't be given any more, since its connection or its session has
ended, they are taken back as if they had never been acquired. The client's quota is asked before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from segstore.coordinator.share.core.values import AckBatch
from segstore.coordinator.share.share import AcquireTerms, Acquisition
from segstore.errors import OffsetNotAvailableError, SegstoreError
from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.protocol.fetch_epochs import FINAL_EPOCH
from segstore.server.apis import Api
from segstore.server.fetching.share_purgatory import Glance, ParkedShareFetch
from segstore.server.fetching.share_sessions import ShareSession, WirePartition
from segstore.server.node import Node
from segstore.server.request import LATER, Later, Request
from segstore.storage.transfer.stretch import Stretch

from .share_fetches import ShareFetches, with_share_fetches
from .share_requests import (
    GOOD,
    Told,
    asked_of,
    has_share_groups,
    is_unnamed,
    judged_acknowledgements,
    leader_of,
    renews,
    text_of,
    told_of,
)
from .working import fail, work

log = Logger("segstore")
_Response = structs("ShareFetchResponse")
_Row = _Response.PartitionData
_NO_RECORDS = b""
_STALE = "The share session has ended, or another request of it has come."


class _Got(NamedTuple):
    """A partition's part of an answer: the records that were acquired, with their bytes, or why not."""

    told: Told
    acquisition: Acquisition | None = None
    records: Stretch | None = None


class _Done(NamedTuple):
    """What a worker has done: how acknowledgements went, and what was acquired."""

    acknowledged: dict[WirePartition, Told]
    got: dict[WirePartition, _Got]


class _ShareFetch:
    """A request under way."""

    def __init__(self, fetches: ShareFetches, request: Request, session: ShareSession) -> None:
        body = request.body
        self._fetches, self._request, self._session, self._body = fetches, request, session, body
        self._epoch, self._is_last = session.epoch, body.share_session_epoch == FINAL_EPOCH
        self._until = time.monotonic() + max(body.max_wait_ms, 0) / 1000
        self._throttle = fetches.throttle_of(request)
        self._throttle_ms = 0
        self._acknowledged: dict[WirePartition, Told] = {}
        self._refused: dict[WirePartition, Told] = {}
        self._topics: dict[WirePartition, str] = {}

    def begin(self) -> Any:
        """Acknowledge, and acquire records; answer now or later."""
        found = judged_acknowledgements(self._fetches.topics, self._request, asked_of(self._body).acknowledged)
        self._acknowledged.update(found.refused)
        return self._go_on(found.good, self._until > time.monotonic())

    # --- rounds --------------------------------------------------------------------------------

    def _go_on(self, acknowledged: Mapping[WirePartition, Sequence[AckBatch]], may_wait: bool) -> Any:
        """Have a worker do what is to be done; if that is nothing, answer."""
        if not self._is_current:
            return self._stale()
        wanted = self._wanted()
        if not (wanted or acknowledged or self._is_last):
            return self._answer({})
        glance = self._fetches.waits.glance(self._session.group, [self._place(key) for key in wanted])
        terms = self._terms()
        run = partial(self._work, acknowledged, wanted, terms)
        return work(
            self._fetches.node, self._request, run, lambda result: self._done(result, glance, may_wait), True
        )

    @property
    def _is_current(self) -> bool:
        """Return whether the answer can still be given."""
        session = self._session
        is_valid = self._is_last or (self._fetches.sessions.has(session) and session.epoch == self._epoch)
        return self._request.channel.is_open and is_valid

    def _stale(self) -> Any:
        return _Response(error_code=Code.INVALID_SHARE_SESSION_EPOCH, error_message=_STALE)

    def _place(self, key: WirePartition) -> tuple[str, int]:
        return self._topics[key], key[1]

    def _wanted(self) -> list[WirePartition]:
        """Return the partitions to acquire records of, none if the request or its quota has no room."""
        body = self._body
        if self._is_last or renews(self._request) or body.max_records <= 0 or body.max_bytes <= 0:
            return []
        if self._throttle.bound is not None:
            self._throttle_ms = self._throttle.wait_ms()
            if self._throttle_ms:
                return []
        found = self._fetches.topics.found(
            self._request, self._session.in_turn(body.share_session_epoch)
        )
        self._refused = {key: each for key, each in found.items() if isinstance(each, Told)}
        self._topics = {key: each for key, each in found.items() if isinstance(each, str)}
        return list(self._topics)

    def _terms(self) -> AcquireTerms:
        body = self._body
        mode = getattr(body, "share_acquire_mode", 0)
        most = self._fetches.most_bytes(body.max_bytes, self._throttle)
        return AcquireTerms(body.max_records, body.batch_size, mode, most)

    def _work(
        self,
        acknowledged: Mapping[WirePartition, Sequence[AckBatch]],
        wanted: Sequence[WirePartition],
        terms: AcquireTerms,
    ) -> _Done:
        """Acknowledge first: what is released may be acquired at once. Called by a worker thread."""
        fetches, session = self._fetches, self._session
        told = fetches.acknowledge(session, acknowledged)
        if self._is_last:
            fetches.release(session)
        return _Done(told, self._acquired(wanted, terms) if wanted else {})
