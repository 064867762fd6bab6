"""`Parts`: what a consumer is made of, put together. Nothing on disk. Threads: see `guard`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segstore.client.consumer.base import Guard
from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.coordination import Coordination
from segstore.client.consumer.fetcher import Fetcher
from segstore.client.consumer.group_member import Grouped
from segstore.client.consumer.interceptors import Interceptors
from segstore.client.consumer.iteration import Iteration
from segstore.client.consumer.lookups import Lookups
from segstore.client.consumer.metrics import ConsumerMetrics, NoMetrics
from segstore.client.consumer.no_group import Ungrouped
from segstore.client.consumer.positions import Positions
from segstore.client.consumer.subscription import Subscription
from segstore.coordinator.quotas import CONSUMER_BYTE_RATE, quotas
from segstore.errors import InvalidTypeError
from segstore.storage.store.store import Store


class Parts:
    """The base of `Consumer`, which is written in several files: each has the methods of one matter."""

    def __init__(self, store: Store, settings: Mapping[str, Any]) -> None:
        """ConfigError, InvalidTypeError, InvalidGroupIdError, ReadOnlyError for a group over a store opened
        "r".
        """
        if not isinstance(store, Store):
            raise InvalidTypeError(
                f"store must be a Store, as segstore.open() gives, not {type(store).__name__}"
            )
        self.config = ConsumerConfig.parse(settings)
        self._store, self._guard, self._iteration = store, Guard(store.path), Iteration()
        self._subscription = Subscription()
        self._lookups = Lookups(store, self.config.isolation_level)
        self._metrics = (ConsumerMetrics if self.config.metrics_enabled else NoMetrics)(self.config)
        self._interceptors = Interceptors(self.config.interceptors)
        self._coordination: Coordination = (
            Ungrouped(store, self._subscription, self.config)
            if self.config.group_id is None
            else Grouped(store, self._subscription, self.config, self._interceptors)
        )
        self._positions = Positions(
            store, self._subscription, self._coordination, self._lookups, self.config.auto_offset_reset
        )
        throttle = quotas(store).throttle(CONSUMER_BYTE_RATE, self.config.client_id)
        self._fetcher = Fetcher(self._subscription, self._positions, self.config, self._metrics, throttle)
