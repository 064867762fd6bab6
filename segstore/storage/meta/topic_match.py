"""Whether a topic that exists is the one that was asked for. Nothing on disk. Threads: any; functions."""

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
    """Return the topic that `make` makes or, where it exists already, the one that `find` finds, if it has no
    `differences` from what is wanted; make it where it was deleted in between. Raises TopicMismatchError.
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
    """Return what the topic has and what is wanted, where they differ, by the name of a setting or
    "partitions"; None stands for any number of these. Settings that `config` does not name may be anything.
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
