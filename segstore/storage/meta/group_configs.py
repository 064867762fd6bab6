"""The file `.segstore/groups.json` and its second copy `groups.copy`, with the settings that were set for
single groups, by Kafka's names (KIP-848; Kafka: GroupConfig).

The settings are a `CheckedFile` in two copies. If a part of a copy is damaged, the whole copy is ignored. A
copy is replaced by a rename, so that a crash leaves the old settings or the new settings. Threads: any may
read; a thread that writes holds the lock of `segstore.coordinator.group_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segstore import names
from segstore.config import GroupConfig
from segstore.storage.meta.checked_file import OBJECT, CheckedFile

_VERSION = 1

GroupConfigs = Mapping[str, GroupConfig]
"""The settings by group id. A group without settings of its own is missing."""


def _from_json(held: Any) -> GroupConfigs:
    if not isinstance(held, dict) or held.keys() != {"version", "groups"}:
        raise ValueError('an object with "version" and "groups" is expected')
    if type(held["version"]) is not int or held["version"] != _VERSION:
        raise ValueError(f"version {held['version']!r} is unknown, {_VERSION} is known")
    groups = held["groups"]
    if not isinstance(groups, dict) or not all(isinstance(each, dict) and each for each in groups.values()):
        raise ValueError("an object of groups with their settings is expected")
    return {group: GroupConfig.parse(made) for group, made in groups.items()}


GROUP_CONFIGS: CheckedFile[GroupConfigs] = CheckedFile(
    names.GROUPS,
    "settings of groups",
    _from_json,
    1 << 28,
    OBJECT,
    lambda configs: {
        "version": _VERSION,
        "groups": {group: config.to_mapping() for group, config in sorted(configs.items())},
    },
    copy=names.GROUPS_COPY,
    advice="`segstore check --repair` moves it aside, and groups have the store's settings then",
)
