"""Clients for asyncio: `Producer`, `Consumer` and `ShareConsumer` with coroutines in place of methods.

Threads: one event loop for each client.
"""

from segstore.client.aio.consumer import AsyncConsumer
from segstore.client.aio.producer import AsyncProducer
from segstore.client.aio.share_consumer import AsyncShareConsumer

__all__ = ["AsyncConsumer", "AsyncProducer", "AsyncShareConsumer"]
