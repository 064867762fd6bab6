"""Clients for asyncio: `Producer` and `Consumer` with coroutines in place of methods.

Threads: one event loop; see `producer` and `consumer`.
"""

from segstore.client.aio.consumer import AsyncConsumer
from segstore.client.aio.producer import AsyncProducer

__all__ = ["AsyncConsumer", "AsyncProducer"]
