"""The match of an existing topic with the wanted settings. Nothing on disk. Threads: any; functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from segstore.config import TopicConfig
from segstore.errors import TopicAlreadyExistsError, TopicMismatchError
from segstore.storage.meta.topic_info import TopicInfo


def made_or_found(
    make: Callable[[], TopicInfo],
    find: Callable[[], TopicInfo | None],
    differences: Callable[[TopicInfo], Mapping[str, tuple[object, object]]],
) -> TopicInfo:
    """Return the topic that `make` creates. If the topic exists already, return the topic that `find`
    returns. If `find` returns None, because the topic was deleted in between, `make` is called again. Raises
    TopicMismatchError if an existing topic has `differences` from the wanted settings.
    """
    while True:
        try:
            return make()
        except TopicAlreadyExistsError:
            found = find()
        if found is not None:
            different = differences(found)
            if different:
                raise TopicMismatchError(found.name, different)
            return found


def differences(
    info: TopicInfo, partitions: int | None, config: Mapping[str, Any]
) -> dict[str, tuple[object, object]]:
    """Return the settings, by name, that differ from the wanted ones, each as (present, wanted), also
    "partitions" unless the wanted number is None. Settings that `config` does not name may have any value.
    """
    wanted = TopicConfig.parse(config)
    pairs: dict[str, tuple[object, object]] = {
        name: (getattr(info.settings, attribute), getattr(wanted, attribute))
        for name in sorted(config)
        for attribute in [name.replace(".", "_")]
    }
    if partitions is not None:
        pairs["partitions"] = info.partitions, partitions
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
