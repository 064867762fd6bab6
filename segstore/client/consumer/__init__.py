"""The consumer: subscription, positions, fetching, records. Knows only `storage` and its columns."""

from __future__ import annotations

from segstore.client.consumer.consumer import Consumer
from segstore.client.consumer.records import ConsumerRecord
from segstore.client.consumer.subscription import ConsumerRebalanceListener

__all__ = ["Consumer", "ConsumerRebalanceListener", "ConsumerRecord"]
