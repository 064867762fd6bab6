"""The consumer: subscription, assignment, positions, fetching, and membership in a group."""

from __future__ import annotations

from segstore.client.consumer.consumer import Consumer
from segstore.client.consumer.records import ConsumerRecord
from segstore.client.consumer.subscription import ConsumerRebalanceListener, SubscriptionPattern

__all__ = ["Consumer", "ConsumerRebalanceListener", "ConsumerRecord", "SubscriptionPattern"]
