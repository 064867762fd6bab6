"""Checks segstore's own small files: topic settings, quotas, credentials, settings of groups, times and
errors of sweeps, producer ids, the cluster id, the store's format and role, and the files of a primary and
its standby.

Files on disk are only read. Threads: any.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from segstore.errors import CorruptCheckpointError, StorageError
from segstore.files import Files
from segstore.storage.finding import Finding
from segstore.storage.meta.checked_file import CheckedFile
from segstore.storage.meta.client_quotas import QUOTAS
from segstore.storage.meta.fence import FENCE
from segstore.storage.meta.group_configs import GROUP_CONFIGS
from segstore.storage.meta.promotion import PROMOTION
from segstore.storage.meta.role import ROLE
from segstore.storage.meta.scram_credentials import SCRAM
from segstore.storage.meta.sealed_file import CLUSTER_ID, PRODUCER_ID
from segstore.storage.meta.small_files import Copies, Copy, reason
from segstore.storage.meta.standby_registration import REGISTRATION
from segstore.storage.meta.store_format import check_format, path_of
from segstore.storage.meta.sweep_states import SWEEPS
from segstore.storage.meta.topics import TopicFiles, TopicInfo


def check_small(files: Files, root: str, topics: Mapping[str, TopicInfo], at_rest: bool) -> Iterator[Finding]:
    """Yield the findings on segstore's own small files. In a store in use, a copy gets a finding only if it
    is unreadable, because the writer may be about to write a missing or outdated copy. Raises OSError.
    """
    for info in topics.values():
        if info.ours or info.lost is not None:
            yield from _check_copies(TopicFiles(files, root).settings(info.name), at_rest, info.lost)
    copies: Copies[Any]
    for copies in (QUOTAS.copies(files, root), SCRAM.copies(files, root), GROUP_CONFIGS.copies(files, root)):
        yield from _check_copies(copies, at_rest, None)
    yield from _check_standby(files, root)
    if wrong := check_format(files, root):
        yield Finding(path_of(root), None, None, f"{wrong}: made anew at the next open for writing")
    hints: tuple[CheckedFile[Any], ...] = (SWEEPS, PRODUCER_ID, CLUSTER_ID)
    for each in hints:
        if wrong := each.damage(files, root):
            yield Finding(each.path(root), None, None, wrong)


def _check_standby(files: Files, root: str) -> Iterator[Finding]:
    """Yield the findings on the files with the roles of primary and standby."""
    held: tuple[CheckedFile[Any], ...] = (ROLE, FENCE, REGISTRATION, PROMOTION)
    for each in held:
        refused = "" if each is PROMOTION else ": no open for writing is possible"
        try:
            each.read(files, root)
        except CorruptCheckpointError as error:
            yield Finding(error.file, None, None, f"{reason(error)}{refused}")


def _check_copies(copies: Copies[Any], at_rest: bool, lost: Exception | None) -> Iterator[Finding]:
    try:
        right, wrong = copies.look()
    except (CorruptCheckpointError, StorageError) as error:
        said = "nothing of the topic is deleted or compacted until its settings are stated anew"
        message = f"{reason(error)}; so is the second copy: {said}" if lost is not None else reason(error)
        yield Finding(copies.paths[0], None, None, message)
        return
    for one in wrong:
        if one.error is not None or (at_rest and not _is_older(right, one)):
            done = f"made anew from {os.path.basename(right.path)} at the next open for writing"
            yield Finding(one.path, None, None, f"{one.wrong(right)}: {done}")


def _is_older(right: Copy[Any], one: Copy[Any]) -> bool:
    """Return whether the copy `one` is missing because an older version of segstore, which made no second
    copies, has written `right`.
    """
    return one.data is None and not right.checked
