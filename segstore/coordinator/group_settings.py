"""`GroupSettings`: the settings of single groups, which override the store's settings (KIP-848, KIP-932;
Kafka: GroupConfig, GroupConfigManager).

On disk: the store's file of group settings (`storage.store.kept_files`). Threads: any. A member gets a
change with its next heartbeat.
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
    """The session timeout and the heartbeat interval of a group's members, in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


class GroupSettings:
    """The settings of a store's groups. The constructor raises CorruptCheckpointError or StorageError if the
    settings can't be read.
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
        """Return the names of the groups that have settings of their own, sorted."""
        return sorted(self._held)

    def made(self, group: str) -> GroupConfig:
        """Return the group's own settings. In the result, a setting that was not set for the group has
        Kafka's default, even if the store has another value.
        """
        return self._held.get(group, GroupConfig())

    def timing(self, group: str) -> Timing:
        """Return the effective timeouts of a group. A timeout that was not set for it is the store's."""
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
        """Return the effective settings of a share group. It is the same object until a setting changes."""
        # `_shares` is read before `_held`, and `alter` replaces `_held` before `_shares`. So settings that
        # are made from the old `_held` are never stored in the new `_shares`.
        shares = self._shares
        made = self._held.get(group)
        # All groups without settings of their own share one object, whose name is "".
        name = "" if made is None else group
        found = shares.get(name)
        if found is None:
            found = shares[name] = share_settings(name, made or GroupConfig(), self._store, self._level)
        return found

    def share_limits(self, group: str) -> Limits:
        """Return the limits of a share group, for example the number of records in flight per partition and
        the duration of a lock.
        """
        return self.share(group).limits

    def share_timing(self, group: str) -> ShareTiming:
        """Return the session timeout and the intervals of a share group."""
        return self.share(group).timing

    def share_isolation(self, group: str) -> str:
        """Return the isolation level of a share group's reads, which is one of ISOLATION_LEVELS."""
        return self.share(group).isolation

    def share_reset(self, group: str) -> AutoReset:
        """Return the policy that chooses a share group's start offset in a partition that is new to it."""
        return self.share(group).reset

    def dead_letters(self, group: str) -> DeadLetterRules:
        """Return the dead-letter topic of a share group, and its rules."""
        return self.share(group).dead_letters

    def set_share_version(self, level: int) -> None:
        """Set the level of the feature share.version. Below level 2 no group has dead letters (KIP-1191)."""
        with self._lock:
            self._level, self._shares = level, {}

    # --- changes -------------------------------------------------------------------------------

    def alter(self, group: str, changes: Mapping[str, Any], *, validate_only: bool = False) -> None:
        """Change settings of a group; the changes are durable when this method returns. A value of None
        removes the group's own setting, so that the store's value holds. If `validate_only`, only check the
        changes. The group need not exist. Raises ConfigError, ReadOnlyError, StorageError, and
        InvalidRequestError if the group's name is empty.
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
        """Raise ConfigError if a setting is outside of the store's bounds, or if two settings contradict each
        other (Kafka: GroupConfig.validateValues).
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
    """Return the settings of an open store's groups. If the store is open only for reading, they are a
    snapshot. Raises CorruptCheckpointError, StorageError, StoreClosedError, ForkedError.
    """
    if store.keeps:
        return shared(store, GroupSettings)
    store.context.check_open()
    return GroupSettings(store)
