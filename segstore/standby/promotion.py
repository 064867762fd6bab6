"""Promotes a standby's directory to a primary. The primary leads from a new leader epoch on.

The steps on disk are: write the epoch into `.segstore/role`; begin the epoch in all partitions, and write
cluster id and producer ids; write `.segstore/promotion`; remove the role. After a crash the next promotion
repeats the steps with the epoch in the role. Threads: one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from segstore import names
from segstore.choices import REACHABLE
from segstore.config import StoreConfig
from segstore.errors import InvalidArgumentError
from segstore.files import Files
from segstore.integers import INT32_MAX
from segstore.leader_epochs import DISTANCE
from segstore.storage.context import Clock, os_errors
from segstore.storage.meta.fence import FENCE
from segstore.storage.meta.lag_note import LAG_NOTE
from segstore.storage.meta.promotion import PROMOTION, Promotion
from segstore.storage.meta.role import NOT_PROMOTING, ROLE, STANDBY, Role
from segstore.storage.meta.sealed_file import CLUSTER_ID, PRODUCER_ID
from segstore.storage.meta.standby_registration import REGISTRATION
from segstore.storage.store.store import open_context
from segstore.storage.store.writer import StoreWriter

_IDS = 32
"""The low bits of a producer id that count the ids within one leader epoch; the epoch is in the bits above.
So no two primaries give out the same producer id. An earlier primary may have given out an id that is in no
log yet. If this primary gave out the same id, batches of one of the two producers would count as duplicates.
"""


def standby_role(files: Files, root: str) -> Role:
    """Return the role of a standby's directory. Raises CorruptCheckpointError, OSError, and
    InvalidArgumentError for any other directory.
    """
    role = ROLE.read(files, root) if files.exists(root) else None
    if role is None or role.kind != STANDBY:
        raise InvalidArgumentError(f"{root} is no standby: there is nothing to promote")
    return role


def promote_directory(
    root: str,
    epoch: int | None,
    old: str,
    reason: str,
    *,
    config: Mapping[str, Any] | None,
    clock: Clock,
    files: Files,
) -> int:
    """Promote the standby in a directory that no process has open, durably, and return the new leader epoch.
    The new leader epoch is `epoch`; if `epoch` is None, it is an epoch above every epoch that a primary can
    have reached. If a crash has interrupted an earlier promotion, complete that promotion, with the leader
    epoch in the role.

    Raises StoreLockedError, StorageError, and InvalidArgumentError if the directory is no standby, or if
    `epoch` is not above all known leader epochs.
    """
    settings = StoreConfig.parse({} if config is None else config)
    with os_errors():
        role = standby_role(files, root)
        context = open_context(root, settings, clock, files, None)
        writer = StoreWriter(context, settings, replicated=True, role=STANDBY)
        try:
            with context.reserve:
                forget_request(files, root)
                largest = largest_epoch(writer, role.leader_epoch)
                role = _marked(files, root, role, largest, epoch, old, reason)
                for name, info in writer.topics.items():
                    lead(writer, name, info.partition_ids, role.promoting)
                writer.partitions.flush()
                CLUSTER_ID.write(files, root, role.cluster_id)
                PRODUCER_ID.write(files, root, role.promoting << _IDS)
                _forget_before(files, root)
                PROMOTION.write(
                    files,
                    root,
                    Promotion(
                        role.promoting, role.source, role.directory_id, role.cluster_id, role.reason,
                        role.old == REACHABLE,
                    ),
                )  # fmt: skip
                ROLE.remove(files, root)
        finally:
            writer.close()
    return role.promoting


def largest_epoch(writer: StoreWriter, known: int) -> int:
    """Return the largest leader epoch of the partitions, or `known` if there are no partitions."""
    return max(
        (
            writer.partitions.replica(name, number).epoch_cache.current
            for name, info in writer.topics.items()
            for number in info.partition_ids
        ),
        default=known,
    )


def _marked(
    files: Files, root: str, role: Role, largest: int, epoch: int | None, old: str, reason: str
) -> Role:
    """Write the promotion and its leader epoch into the role, durably, and return the role. If the role
    already has an earlier promotion, return the role unchanged.
    """
    if role.promoting != NOT_PROMOTING:
        return role
    largest = max(largest, role.leader_epoch)
    epoch = largest + DISTANCE if epoch is None else epoch
    if not largest < epoch <= INT32_MAX:
        raise InvalidArgumentError(
            f"leader epoch {epoch}: must be above {largest}, the largest one that is known, and an int32"
        )
    marked = replace(role, promoting=epoch, old=old, reason=reason)
    ROLE.write(files, root, marked)
    return marked


def lead(writer: StoreWriter, name: str, numbers: tuple[int, ...], epoch: int) -> None:
    """Begin the leader epoch `epoch` in the partitions `numbers` of a topic, and move the high watermark of
    each partition to the partition's log end offset.
    """
    ends: dict[int, int] = {}
    for number in numbers:
        replica = writer.partitions.replica(name, number)
        ends[number] = replica.log_end_offset
        replica.set_high_watermark(ends[number])
        if replica.epoch_cache.current < epoch:
            replica.begin_epoch(epoch)
    writer.topic_admin.remember_gaps(name, ends)


def _forget_before(files: Files, root: str) -> None:
    """Remove the standby's lag file. If this directory was a primary earlier, also remove the primary's fence
    and registration files.
    """
    for each in (FENCE.path(root), REGISTRATION.path(root), LAG_NOTE.path(root)):
        if files.exists(each):
            files.unlink(each)


def ask_to_let_go(files: Files, root: str) -> None:
    """Ask the process that runs a standby in this directory to close the standby. Raises OSError."""
    files.write_atomic(names.below(root, f"{names.OURS}/{names.LET_GO}"), b"")


def forget_request(files: Files, root: str) -> None:
    """Remove the file that `ask_to_let_go` has written. Raises OSError."""
    path = names.below(root, f"{names.OURS}/{names.LET_GO}")
    if files.exists(path):
        files.unlink(path)
