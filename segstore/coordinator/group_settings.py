"""`GroupSettings`: the settings of single groups, which override the store's (KIP-848, KIP-932; Kafka:
GroupConfig, GroupConfigManager).

On disk: the store's file of group settings (`storage.store.kept_files`). Threads: any. A change holds from
each member's next heartbeat on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from segstore.config import GroupConfig, StoreConfig
from segstore.config.groups import AutoReset
from segstore.coordinator.share.core.values import Limits
from segstore.coordinator.share_settings import (
    DEAD_LETTERS_SINCE,
    DeadLetterRules,
    ShareSettings,
    ShareTiming,
    fault,
    share_settings,
)
from segstore.coordinator.shared import shared
from segstore.errors import ConfigError, InvalidRequestError
from segstore.mutex import Mutex
from segstore.storage.context import os_errors
from segstore.storage.meta.group_configs import GROUP_CONFIGS, GroupConfigs
from segstore.storage.store.reader import StoreReader
from segstore.storage.store.store import Store

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


class Timing(NamedTuple):
    """The session timeout and the heartbeat interval of a group's members, ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


class GroupSettings:
    """The settings of a store's groups. The constructor raises CorruptCheckpointError or StorageError if they
    can't be read.
    """

    def __init__(self, store: Store) -> None:
        side = store.engine
        self._context, self._lock = store.context, Mutex()
        self._writer = None if isinstance(side, StoreReader) or not store.keeps else side
        self._store = StoreConfig() if self._writer is None else self._writer.config
        self._level, self._shares = DEAD_LETTERS_SINCE, dict[str, ShareSettings]()
        with os_errors():
            self._held: GroupConfigs = (
                (GROUP_CONFIGS.read(self._context.files, self._context.root) or {})
                if self._writer is None
                else self._writer.kept.group_configs()
            )

    def close(self) -> None:
        """Do nothing: the object holds no resource."""

    def groups(self) -> list[str]:
        """Return the groups that have settings of their own, in order."""
        return sorted(self._held)

    def made(self, group: str) -> GroupConfig:
        """Return the settings that were set for a group; all other settings have Kafka's defaults in the
        result.
        """
        return self._held.get(group, GroupConfig())

    def timing(self, group: str) -> Timing:
        """Return the effective timeouts of a group: its own settings, else the store's."""
        return self._timing(self.made(group))

    def _timing(self, config: GroupConfig) -> Timing:
        store = self._store
        return Timing(
            config.consumer_session_timeout_ms
            if SESSION in config.explicit
            else store.group_consumer_session_timeout_ms,
            config.consumer_heartbeat_interval_ms
            if HEARTBEAT in config.explicit
            else store.group_consumer_heartbeat_interval_ms,
        )

    # --- share groups --------------------------------------------------------------------------

    def share(self, group: str) -> ShareSettings:
        """Return the effective settings of a share group, the same object until they change."""
        # Read before `_held`. `alter` replaces `_held` first, so settings from the old `_held` can only get
        # into the old `_shares`.
        shares = self._shares
        made = self._held.get(group)
        name = "" if made is None else group  # groups without settings of their own share one object
        found = shares.get(name)
        if found is None:
            found = shares[name] = share_settings(name, made or GroupConfig(), self._store, self._level)
        return found

    def share_limits(self, group: str) -> Limits:
        """Return the limits of a share group: records in flight per partition, deliveries, and the duration
        of a record lock.
        """
        return self.share(group).limits

    def share_timing(self, group: str) -> ShareTiming:
        """Return the timeouts of a share group's members."""
        return self.share(group).timing

    def share_isolation(self, group: str) -> str:
        """Return the isolation level with which a share group reads, one of ISOLATION_LEVELS."""
        return self.share(group).isolation

    def share_reset(self, group: str) -> AutoReset:
        """Return the reset policy, which chooses a share group's start offset in a new partition."""
        return self.share(group).reset

    def dead_letters(self, group: str) -> DeadLetterRules:
        """Return the dead-letter topic of a share group, and its rules."""
        return self.share(group).dead_letters

    def set_share_version(self, level: int) -> None:
        """Set the level of the feature share.version; below 2 no group has dead letters (KIP-1191)."""
        with self._lock:
            self._level, self._shares = level, {}

    # --- changes -------------------------------------------------------------------------------

    def alter(self, group: str, changes: Mapping[str, Any], *, validate_only: bool = False) -> None:
        """Change settings of a group, durable on return; None resets a setting to the store's. If
        `validate_only`, only check the changes. The group need not exist. Raises ConfigError,
        InvalidRequestError for an empty name, ReadOnlyError, StorageError.
        """
        self._context.check_writable()
        if self._writer is None:
            from segstore.storage.shared.refused_calls import refused_in_guest

            raise refused_in_guest("a change of settings of groups")
        if not group:
            raise InvalidRequestError("a group must be named: settings of all groups are the store's")
        with self._lock:
            wanted = self.made(group).replace(changes)
            self._check(wanted)
            if validate_only:
                return
            merged = {**self._held, group: wanted}
            kept = {name: config for name, config in merged.items() if config.explicit}
            with os_errors():
                self._writer.kept.set_group_configs(kept)
            self._held = kept
            self._shares = {}

    def _check(self, wanted: GroupConfig) -> None:
        """Raise ConfigError if settings lie outside of the store's bounds, or contradict each other (Kafka:
        GroupConfig.validateValues).
        """
        store, made, timing = self._store, wanted.explicit, self._timing(wanted)
        for name, value, least, most in (
            (
                SESSION,
                timing.session_timeout_ms,
                store.group_consumer_min_session_timeout_ms,
                store.group_consumer_max_session_timeout_ms,
            ),
            (
                HEARTBEAT,
                timing.heartbeat_interval_ms,
                store.group_consumer_min_heartbeat_interval_ms,
                store.group_consumer_max_heartbeat_interval_ms,
            ),
        ):
            if name in made and not least <= value <= most:
                bounds = f"group.{name.replace('consumer.', 'consumer.{}.')}"
                raise ConfigError(
                    f"{name}={value}: must be from {least} to {most}, the store's {bounds.format('min')} and "
                    f"{bounds.format('max')}"
                )
        if made and timing.session_timeout_ms <= timing.heartbeat_interval_ms:
            raise ConfigError(
                f"{SESSION}={timing.session_timeout_ms}: must be greater than {HEARTBEAT}, which is "
                f"{timing.heartbeat_interval_ms}"
            )
        of_share = fault(wanted, store)
        if made and of_share is not None:
            raise ConfigError(of_share)


def group_settings(store: Store) -> GroupSettings:
    """Return the settings of an open store's groups; if the store is open for reading, a snapshot of them.
    Raises CorruptCheckpointError, StorageError, StoreClosedError, ForkedError.
    """
    if store.keeps:
        return shared(store, GroupSettings)
    store.context.check_open()
    return GroupSettings(store)
