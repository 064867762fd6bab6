"""`segstore.check`: checks a store's bytes and the records of its internal topics, and returns findings.

On disk: only reads. Threads and processes: any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from segstore import names
from segstore.config import arguments
from segstore.coordinator.inboxes.adopted_topic import unreadable
from segstore.coordinator.loader import UnreadableRecord
from segstore.coordinator.offsets.state import understand
from segstore.coordinator.offsets.topic import TOPIC as OFFSETS
from segstore.coordinator.share.state_findings import Doubt, doubts
from segstore.coordinator.share.state_table import understand as understand_shares
from segstore.coordinator.share.state_topic import TOPIC as SHARES
from segstore.coordinator.transaction.state_log import TOPIC as STATE
from segstore.coordinator.transaction.state_log import TransactionStateLog
from segstore.errors import SegstoreError
from segstore.storage.check import check as bytes_of
from segstore.storage.check.check import Finding
from segstore.storage.meta.topic_info import ADOPTED
from segstore.storage.store import store as storage
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

Look = Callable[[Store, PartitionLog], list[UnreadableRecord]]
LOOKS: Mapping[str, tuple[str, Look]] = {
    OFFSETS: ("a group's", lambda store, log: understand(log)[1]),
    ADOPTED: ("an adopted id's", lambda store, log: unreadable(log)),
    SHARES: ("a share partition's", lambda store, log: understand_shares(log)[1]),
    STATE: ("a transaction's", lambda store, log: TransactionStateLog(store).unreadable(log)),
}
DOUBTS: Mapping[str, Callable[[PartitionLog], list[Doubt]]] = {SHARES: doubts}
"""Functions that check the content of decoded records, by topic."""


def check(path: str | os.PathLike[str], *, progress: Callable[[int], None] | None = None) -> list[Finding]:
    """Check all bytes of a store, and return the findings in the order of partitions; the list is empty if
    there is no damage.

    The records of internal topics are checked too. The latest record of a key is a finding if it can't be
    decoded, or if it is a state of a share partition that no coordinator would write. `progress` is called
    with the size of each checked segment, in bytes. Raises StorageError if the directory is missing, or if it
    has other files but no store.
    """
    root = arguments.path("path", path)
    return [*bytes_of.check(root, progress=progress), *check_internal(root)]


def check_internal(path: str | os.PathLike[str]) -> list[Finding]:
    """Check only the records of internal topics, and return the findings. Raises StorageError if there is no
    store.
    """
    with storage.open(path, mode="r") as store:
        try:
            topics = store.topics()
        except (SegstoreError, OSError):
            return []  # `bytes_of.check` reports why the topics can't be read.
        places = [(t, p) for t in LOOKS if t in topics for p in topics[t].partition_ids]
        return [finding for place in places for finding in _check_partition(store, *place)]


def _check_partition(store: Store, topic: str, partition: int) -> Iterator[Finding]:
    whose, look = LOOKS[topic]
    try:
        log = store.partition(topic, partition)
        found = sorted(look(store, log))
        doubtful = DOUBTS[topic](log) if topic in DOUBTS else []
        offsets = [*(each.offset for each in found), *(each.offset for each in doubtful)]
        paths = {offset: _path(log, offset) for offset in offsets}
    except (SegstoreError, OSError):
        # Either the log is damaged, which `bytes_of.check` reports, or it was deleted.
        return
    for each in found:
        fate = "it can't be used by this version of segstore" if each.newer else "it is passed over"
        message = f"not readable as {whose} record, {fate}: {each.reason}"
        yield Finding(paths[each.offset], None, each.offset, message)
    for doubt in doubtful:
        yield Finding(
            paths[doubt.offset], None, doubt.offset, f"not as {whose} record should be: {doubt.reason}"
        )


def _path(log: PartitionLog, offset: int) -> str:
    there = [segment for segment in log.source.view.segments if segment.base_offset <= offset]
    return there[-1].path if there else names.partition_dir(log.topic, log.partition)
