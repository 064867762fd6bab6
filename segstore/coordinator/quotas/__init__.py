"""Rate limits: byte rates of producers and consumers by client id. On disk and threads: see `quotas`.

`bucket` counts, `throttle` is what a client asks, `quotas` is what an administrator sets.
"""

from segstore.coordinator.quotas.quotas import Quotas, quotas
from segstore.coordinator.throttle import MOST_WAIT_MS, Throttle
from segstore.storage.meta.client_quotas import CONSUMER_BYTE_RATE, DEFAULT, PRODUCER_BYTE_RATE

__all__ = [
    "CONSUMER_BYTE_RATE",
    "DEFAULT",
    "MOST_WAIT_MS",
    "PRODUCER_BYTE_RATE",
    "Quotas",
    "Throttle",
    "quotas",
]
