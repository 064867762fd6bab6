"""Byte rates of producers and consumers by user and client id: `quotas` stores the limits that administrators
set, and `throttle` enforces the limits.
"""

from segstore.coordinator.quotas.quotas import Quotas, quotas
from segstore.coordinator.throttle import MOST_WAIT_MS, QuotaThrottle
from segstore.storage.meta.client_quotas import CONSUMER_BYTE_RATE, DEFAULT, PRODUCER_BYTE_RATE, Entity

__all__ = [
    "CONSUMER_BYTE_RATE",
    "DEFAULT",
    "MOST_WAIT_MS",
    "PRODUCER_BYTE_RATE",
    "Entity",
    "QuotaThrottle",
    "Quotas",
    "quotas",
]
