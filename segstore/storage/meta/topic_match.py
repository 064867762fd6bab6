"""Compares an existing topic with the wanted settings. Nothing is on disk. Threads: any, because the
functions have no state.
"""

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
    """Return the topic that `make()` creates. If `make` raises TopicAlreadyExistsError, return the topic that
    `find()` returns; if `find` returns None, because the topic was deleted in between, call `make` again.
    Raises TopicMismatchError if `find` returns a topic for which `differences(topic)` is not empty.
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
    """Return {name: (present value, wanted value)} of the settings in `config` for which the topic has
    another value. Unless `partitions` is None, the number of partitions is compared too, under the name
    "partitions".
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
