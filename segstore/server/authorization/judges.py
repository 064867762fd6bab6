"""`JUDGES`: the judge of each API. An API without a judge is refused if the server has an authorizer.

Threads: the loop's thread.
"""

from __future__ import annotations

from segstore.server.apis import Api

from . import cluster, configs, groups, partitions, shares, topics, transactions
from .judge import Judge

JUDGES: dict[Api, Judge] = {
    api: judge
    for module in (cluster, configs, groups, partitions, shares, topics, transactions)
    for api, judge in module.JUDGES.items()
}
