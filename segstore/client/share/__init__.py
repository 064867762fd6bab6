"""The share consumer: a member of a share group. It acquires records and acknowledges them (KIP-932)."""

from __future__ import annotations

from segstore.client.share.consumer import ShareConsumer
from segstore.coordinator.share.core.values import AcknowledgeType

__all__ = ["AcknowledgeType", "ShareConsumer"]
