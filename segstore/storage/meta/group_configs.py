"""Settings of single groups, `.segstore/groups.json` and its second copy `groups.copy`: by group, the
settings that were set, by Kafka's names (KIP-848; Kafka: GroupConfig).

Their form is that of `small_files`. The file is believed whole or not at all. It is replaced in one step, so
that a crash leaves the old settings or the new. Threads: any may read; a thread that writes holds the lock of
`segstore.coordinator.group_settings`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from segstore import names
from segstore.config import GroupConfig
from segstore.errors import ConfigError, CorruptCheckpointError
from segstore.files import Files
from segstore.storage.meta.small_files import Copies, seal, unseal

_VERSION = 1
_MOST_BYTES = 1 << 28

GroupConfigs = Mapping[str, GroupConfig]
"""By group; each group here has at least one setting of its own."""


def group_config_copies(files: Files, root: str) -> Copies[GroupConfigs]:
    """Return the two copies of the settings."""
    ours = os.path.join(root, names.OURS)
    path, second = os.path.join(ours, names.GROUPS), os.path.join(ours, names.GROUPS_COPY)
    return Copies(files, path, second, _MOST_BYTES, _parse)


def read_group_configs(files: Files, root: str) -> GroupConfigs:
    """Return the settings; an empty dict without a file. Raises CorruptCheckpointError, StorageError if both
    copies are damaged; OSError.
    """
    return group_config_copies(files, root).read() or {}


def write_group_configs(files: Files, root: str, configs: GroupConfigs) -> None:
    """Replace the settings, durable when this returns. Raises OSError; the old settings stay then."""
    held = {group: config.to_mapping() for group, config in sorted(configs.items())}
    group_config_copies(files, root).write(seal({"version": _VERSION, "groups": held}))


def _parse(data: bytes, where: str) -> tuple[GroupConfigs, bool]:
    try:
        held, checked = unseal(data)
        if not checked:
            raise ValueError("it has no checksum")
        return _from_json(held), checked
    except (ValueError, ConfigError) as error:
        advice = "`segstore check --repair` moves it aside, and groups have the store's settings then"
        raise CorruptCheckpointError(where, 0, f"no settings of groups: {error}; {advice}") from error


def _from_json(held: Any) -> GroupConfigs:
    if not isinstance(held, dict) or held.keys() != {"version", "groups"}:
        raise ValueError('an object with "version" and "groups" is expected')
    if type(held["version"]) is not int or held["version"] != _VERSION:
        raise ValueError(f"version {held['version']!r} is unknown, {_VERSION} is known")
    groups = held["groups"]
    if not isinstance(groups, dict) or not all(isinstance(each, dict) and each for each in groups.values()):
        raise ValueError("an object of groups with their settings is expected")
    return {group: GroupConfig.parse(made) for group, made in groups.items()}
