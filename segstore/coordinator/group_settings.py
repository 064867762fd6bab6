"""`GroupSettings`: the settings of single groups, which go before the store's (KIP-848, KIP-932; Kafka:
GroupConfig, GroupConfigManager).

On disk: what the store keeps (`storage.store.kept_files`). Threads: any. What is altered holds from the next
heartbeat of each member on.
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
from segstore.storage.meta.group_configs import GroupConfigs, read_group_configs
from segstore.storage.store.reader import StoreReader
from segstore.storage.store.store import Store

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


class Timing(NamedTuple):
    """How long a member may not be heard of, and how often it is told to send heartbeats, ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


class GroupSettings:
    """Raises CorruptCheckpointError, StorageError where the settings can't be read."""

    def __init__(self, store: Store) -> None:
        side = store.engine
        self._context, self._lock = store.context, Mutex()
        self._writer = None if isinstance(side, StoreReader) or not store.keeps else side
        self._store = StoreConfig() if self._writer is None else self._writer.config
        self._level, self._shares = DEAD_LETTERS_SINCE, dict[str, ShareSettings]()
        with os_errors():
            self._held: GroupConfigs = (
                read_group_configs(self._context.files, self._context.root)
                if self._writer is None
                else self._writer.kept.group_configs()
            )

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def groups(self) -> list[str]:
        """Return the groups for which settings were made, in order."""
        return sorted(self._held)

    def made(self, group: str) -> GroupConfig:
        """Return the settings that were made for a group; its other attributes have Kafka's defaults."""
        return self._held.get(group, GroupConfig())

    def timing(self, group: str) -> Timing:
        """Return what holds for a group: what was made for it, or else the store's."""
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
        """Return what holds for a share group now; the same object until that changes."""
        shares = self._shares  # first: a change replaces it after the settings
        made = self._held.get(group)
        name = "" if made is None else group  # groups without settings have one object
        found = shares.get(name)
        if found is None:
            found = shares[name] = share_settings(name, made or GroupConfig(), self._store, self._level)
        return found

    def share_limits(self, group: str) -> Limits:
        """Return how much of a partition may be in flight, how often and how long."""
        return self.share(group).limits

    def share_timing(self, group: str) -> ShareTiming:
        """Return the times that members of a share group have."""
        return self.share(group).timing

    def share_isolation(self, group: str) -> str:
        """Return one of ISOLATION_LEVELS, by which a share group reads."""
        return self.share(group).isolation

    def share_reset(self, group: str) -> AutoReset:
        """Return where a share group begins in a partition that is new to it."""
        return self.share(group).reset

    def dead_letters(self, group: str) -> DeadLetterRules:
        """Return which topic has the dead letters of a share group, and what holds for it."""
        return self.share(group).dead_letters

    def set_share_version(self, level: int) -> None:
        """Set the level of the feature share.version; below 2 no group has dead letters (KIP-1191)."""
        with self._lock:
            self._level, self._shares = level, {}

    # --- changes -------------------------------------------------------------------------------

    def alter(self, group: str, changes: Mapping[str, Any], *, validate_only: bool = False) -> None:
        """Change settings of a group, durable on return; None takes one back to the store's. The group need
        not exist. Raises ConfigError, InvalidRequestError for an empty name, ReadOnlyError, StorageError.
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
            held = {**self._held, group: wanted}
            kept = {name: config for name, config in held.items() if config.explicit}
            with os_errors():
                self._writer.kept.set_group_configs(kept)
            self._held = kept
            self._shares = {}

    def _check(self, wanted: GroupConfig) -> None:
        """Raise ConfigError where settings lie outside of the store's bounds, or contradict each other
        (Kafka: GroupConfig.validateValues).
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
    """Return the settings of an open store's groups; those of one that is open for reading are as they are
    now. Raises CorruptCheckpointError, StorageError, StoreClosedError, ForkedError.
    """
    if store.keeps:
        return shared(store, GroupSettings)
    store.context.check_open()
    return GroupSettings(store)
