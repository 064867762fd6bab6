"""Repairs damaged settings files, and the topic ids in them, when a store is opened for writing.

Both copies of `.segstore/topics/<topic>` may change (`meta.topics` describes them). Repairs are reported
(`StoreContext.report`). Threads: one, before the topics are used.

A topic's id is in its settings, in each partition's metadata, and, hashed, in `.segstore/ends`. If these
differ, and the settings have a checksum, the id in the settings is taken. Settings of an older segstore
have no checksum: then the id that is found most often is taken.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Set
from dataclasses import replace

from segstore.files.reserve import NO_ROOM
from segstore.storage.context import StoreContext
from segstore.storage.meta.published_ends import slot_key
from segstore.storage.meta.small_files import Copy
from segstore.storage.meta.topic_info import TopicSettingsFile
from segstore.storage.meta.topics import TopicFiles, TopicInfo


def mend_settings(
    context: StoreContext,
    topic_files: TopicFiles,
    info: TopicInfo,
    published: Set[int],
    known: Copy[TopicSettingsFile] | None,
) -> TopicInfo:
    """Repair both copies of a topic's settings, and return the topic. `published` has the slot keys (hashes
    of topic id and partition) in `.segstore/ends`. `known` is a copy of the settings that was read before;
    None if none was read. Raises OSError.
    """
    if info.lost is not None:
        done = "its partitions and its id are known by its directories; nothing of it is deleted or compacted"
        context.report(topic_files.settings(info.name).paths[0], f"the settings are lost: {info.lost}", done)
    if not info.ours or info.error is not None:
        return info
    right, wrong = topic_files.settings(info.name).look(known)
    if right.content is None:
        return info
    if not right.checked:
        info = _identified(context, topic_files, right, published)
        _upgrade(context, topic_files, info, right.content.deleting)
    for copy in wrong:
        if right.checked and right.data is not None:
            context.remake(copy.path, right.data, copy.wrong(right), os.path.basename(right.path))
    return info


def _identified(
    context: StoreContext, topic_files: TopicFiles, copy: Copy[TopicSettingsFile], published: Set[int]
) -> TopicInfo:
    """Return the topic of a `copy` of settings without a checksum. Its id is the topic id that occurs most
    often in the settings, in the partitions' metadata and in the published slot keys.
    """
    assert copy.content is not None
    info = copy.content.info
    votes = topic_files.read_ids(info.name, info.partition_ids) + Counter([info.topic_id])
    for topic_id in votes:
        keys = {slot_key(topic_id, info.name, number) for number in info.partition_ids}
        votes[topic_id] += len(keys & published)
    best = max(votes, key=lambda topic_id: (votes[topic_id], topic_id == info.topic_id))
    if best != info.topic_id:
        message = f"topic id {info.topic_id}, but {best} in what lies in its partitions"
        context.report(copy.path, message, "the latter counts")
    return replace(info, topic_id=best)


def _upgrade(context: StoreContext, topic_files: TopicFiles, info: TopicInfo, deleting: bool) -> None:
    """Unless the disk is full, write the settings with a checksum, in two copies. Raises OSError."""
    try:
        topic_files.write(info, deleting=deleting)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
