"""`Keeping`, an interface to the quotas, credentials, group settings and producer ids of a store; and
`KeptFiles`, which implements `Keeping` for a store in one directory.

Reads and writes `.segstore/quotas.json`, `.segstore/scram.json`, `.segstore/groups.json` and
`.segstore/producer-ids`. The modules `client_quotas`, `scram_credentials`, `group_configs` and `sealed_file`
define the formats of these files. Threads: any; the caller of a setter holds a lock for that value.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Protocol

from segstore.files.reserve import NO_ROOM
from segstore.integers import INT64_MAX
from segstore.storage.context import StoreContext
from segstore.storage.meta.client_quotas import QUOTAS, Entity, Limits
from segstore.storage.meta.group_configs import GROUP_CONFIGS, GroupConfigs
from segstore.storage.meta.scram_credentials import SCRAM, Credentials
from segstore.storage.meta.sealed_file import PRODUCER_ID

_IDS, _STEP_BITS = 1000 << 22, 16
"""A copied store raises its first free producer id by `_IDS` times a random number from 1 to 2^`_STEP_BITS`,
so that no other copy hands out the same ids. `_IDS` is a multiple of 1,000, because blocks of ids begin at
multiples of 1,000.
"""


class Keeping(Protocol):
    """Reads and replaces the limits of users and client ids, the credentials of users, the settings of
    groups, and the first producer id that was not handed out.
    """

    def limits(self) -> Limits:
        """Return the limits. Raises CorruptCheckpointError, StorageError, OSError."""

    def set_limits(self, limits: Mapping[Entity, Mapping[str, int]]) -> None:
        """Replace the limits. The new limits are durable when this returns. If this raises StorageError or
        OSError, the old limits stay.
        """

    def credentials(self) -> Credentials:
        """Return the credentials. Raises CorruptCheckpointError, StorageError, OSError."""

    def set_credentials(self, credentials: Credentials) -> None:
        """Replace the credentials. The new credentials are durable when this returns. If this raises
        StorageError or OSError, the old credentials stay.
        """

    def group_configs(self) -> GroupConfigs:
        """Return the settings of groups. Raises CorruptCheckpointError, StorageError, OSError."""

    def set_group_configs(self, configs: GroupConfigs) -> None:
        """Replace the settings of groups. The new settings are durable when this returns. If this raises
        StorageError or OSError, the old settings stay.
        """

    def producer_id(self) -> int | None:
        """Return the first free producer id; None if it is not known. Raises OSError."""

    def set_producer_id(self, first: int) -> None:
        """Replace the first free producer id. The new id is durable when this returns. Raises StorageError,
        OSError.
        """


class KeptFiles:
    """Keeps limits, credentials, settings of groups and the first free producer id in files of the store's
    directory.
    """

    def __init__(self, context: StoreContext) -> None:
        self._context, self._files, self._root = context, context.files, context.root

    def limits(self) -> Limits:
        """Return the limits in `quotas.json`."""
        return QUOTAS.read(self._files, self._root) or {}

    def set_limits(self, limits: Mapping[Entity, Mapping[str, int]]) -> None:
        """Write the limits into `quotas.json`."""
        QUOTAS.write(self._files, self._root, {each: dict(rates) for each, rates in limits.items()})

    def credentials(self) -> Credentials:
        """Return the credentials in `scram.json`."""
        return SCRAM.read(self._files, self._root) or {}

    def set_credentials(self, credentials: Credentials) -> None:
        """Write the credentials into `scram.json`."""
        SCRAM.write(self._files, self._root, credentials)

    def group_configs(self) -> GroupConfigs:
        """Return the settings in `groups.json`."""
        return GROUP_CONFIGS.read(self._files, self._root) or {}

    def set_group_configs(self, configs: GroupConfigs) -> None:
        """Write the settings into `groups.json`."""
        GROUP_CONFIGS.write(self._files, self._root, configs)

    def producer_id(self) -> int | None:
        """Return the number in `producer-ids`; None if the file is missing or damaged."""
        return PRODUCER_ID.hint(self._files, self._root)

    def set_producer_id(self, first: int) -> None:
        """Write the id into `producer-ids`. A damaged file is replaced, and reported. If it is not a regular
        file, it is moved to `.segstore/quarantine` first.
        """
        wrong = PRODUCER_ID.damage(self._files, self._root)
        if wrong:
            path = PRODUCER_ID.path(self._root)
            self._context.report(path, wrong, f"made anew{self._context.make_way(path)}")
        try:
            PRODUCER_ID.write(self._files, self._root, first)
        except OSError as error:
            # No append would report the full disk, because a producer without an id can't append.
            if error.errno in NO_ROOM:
                self._context.full.met(error)
            raise

    def skip_producer_ids(self) -> None:
        """Raise the first free producer id by a random step, because another copy of this store may hand out
        the next ids. Nothing is changed if the disk is full. Nothing is changed if `producer-ids` is damaged,
        because the next id then comes from the logs. Raises OSError.
        """
        first = self.producer_id()
        if first is None and PRODUCER_ID.damage(self._files, self._root):
            return
        first = (first or 0) + (1 + secrets.randbits(_STEP_BITS)) * _IDS
        if first > INT64_MAX >> 1:  # after very many copies a further step might exceed the largest id
            return
        try:
            PRODUCER_ID.write(self._files, self._root, first)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
