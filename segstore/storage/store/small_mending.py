"""Repairs the files in `.segstore` that belong to no topic, when a store is opened for writing: quotas,
credentials, group settings, results of sweeps, producer ids, the cluster id and the format.

Only these files change. A file that can't be made anew is moved to `.segstore/quarantine`. Repairs are
reported (`StoreContext.report`). Threads: one, before the files are used.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from segstore import names
from segstore.errors import CorruptCheckpointError, StorageError
from segstore.files.reserve import NO_ROOM
from segstore.storage.context import StoreContext
from segstore.storage.meta.client_quotas import QUOTAS
from segstore.storage.meta.group_configs import GROUP_CONFIGS
from segstore.storage.meta.scram_credentials import SCRAM
from segstore.storage.meta.sealed_file import CLUSTER_ID, PRODUCER_ID
from segstore.storage.meta.small_files import Copies, put_aside
from segstore.storage.meta.store_format import path_of, write_format
from segstore.storage.meta.sweep_states import SWEEPS


def mend_small(context: StoreContext, there: Collection[str]) -> None:
    """Repair damaged files with quotas, credentials, group settings, results of sweeps, and ids. `there` has
    the relative paths of all files in the root and in `.segstore`. Raises OSError.
    """
    if f"{names.OURS}/{names.QUOTAS}" in there or f"{names.OURS}/{names.QUOTAS_COPY}" in there:
        _mend_quotas(context)
    if f"{names.OURS}/{names.SCRAM}" in there or f"{names.OURS}/{names.SCRAM_COPY}" in there:
        _mend_copies(context, SCRAM.copies(context.files, context.root))
    if f"{names.OURS}/{names.GROUPS}" in there or f"{names.OURS}/{names.GROUPS_COPY}" in there:
        _mend_copies(context, GROUP_CONFIGS.copies(context.files, context.root))
    if f"{names.OURS}/{names.SWEEPS}" in there and (wrong := SWEEPS.damage(context.files, context.root)):
        path = SWEEPS.path(context.root)
        context.remake(path, SWEEPS.pack({}), wrong, "nothing: it is known of no sweep any more")
    # A damaged file is only moved away. A new file is written when an id is next needed; the next producer id
    # is then taken from the logs.
    for each in (PRODUCER_ID, CLUSTER_ID):
        if f"{names.OURS}/{each.name}" in there:
            _move(context, each.path(context.root), each.damage(context.files, context.root))


def state_format(context: StoreContext, wrong: str) -> None:
    """Write the format file of a store. Report the damage `wrong` of the old file, unless `wrong` is "". If
    the disk is full, nothing is written, and the next open tries again. Raises OSError.
    """
    try:
        write_format(context.files, context.root)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
    else:
        if wrong:
            context.report(path_of(context.root), wrong, "made anew")


def _move(context: StoreContext, path: str, wrong: str) -> None:
    """Unless `wrong` is "", move a file to `.segstore/quarantine`, and report its damage `wrong`."""
    if wrong:
        context.report(path, wrong, f"moved to {put_aside(context.files, context.root, path)}")


def _mend_quotas(context: StoreContext) -> None:
    if _mend_copies(context, QUOTAS.copies(context.files, context.root)):
        _upgrade(context)


def _mend_copies(context: StoreContext, copies: Copies[Any]) -> bool:
    """Replace a damaged copy by the good copy, and return whether there is a good copy without a checksum."""
    try:
        right, wrong = copies.look()
    except (CorruptCheckpointError, StorageError):
        return False  # both copies are damaged: they stay, and clients get the error
    for copy in wrong:
        if right.checked and right.data is not None:
            context.remake(copy.path, right.data, copy.wrong(right), os.path.basename(right.path))
    return right.content is not None and not right.checked


def _upgrade(context: StoreContext) -> None:
    """Unless the disk is full, write the quotas with a checksum, in two copies. Raises OSError."""
    try:
        QUOTAS.write(context.files, context.root, (QUOTAS.read(context.files, context.root) or {}))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
