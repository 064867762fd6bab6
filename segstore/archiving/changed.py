"""`changed_topics`, `changed_files`: the topics and small files that a commit must have.

Nothing is on disk. Threads: any; functions without state.
"""

from __future__ import annotations

from collections.abc import Mapping

from segstore.archiving.moment import NEWEST_ONLY, Moment
from segstore.archiving.state import ArchivedTopic, ArchiveState, Versions, with_version
from segstore.storage.meta.topic_info import TopicInfo, format_settings

MOST_VERSIONS = 64
"""The most versions of a small file of `.segstore`, and of a topic's settings, that an archive keeps."""


def changed_topics(state: ArchiveState, moment: Moment, time: int, before: int) -> list[ArchivedTopic]:
    """Return the topics that differ from those of `state`: they are new, have other partitions or settings,
    or were deleted. `time` is the time (ms) of these changes. New topics were created after the time
    `before`.
    """
    found = []
    for info in moment.topics.values():
        if info.error is None:
            had = state.topics.get((info.name, info.topic_id))
            now = _topic(info, had, time, before)
            if now != had:
                found.append(now)
    for key, each in state.topics.items():
        if each.deleted is None and key not in moment.all_topics:
            found.append(each._replace(deleted=time))
    return found


def _topic(info: TopicInfo, had: ArchivedTopic | None, time: int, before: int) -> ArchivedTopic:
    settings = had.settings if had is not None else ()
    if had is None or info.lost is None:
        settings = with_version(settings, time, format_settings(info) if info.ours else b"")
    created = before if had is None else had.created
    return ArchivedTopic(info.name, info.topic_id, info.partition_ids, settings[-MOST_VERSIONS:], created)


def changed_files(state: ArchiveState, small: Mapping[str, bytes], time: int) -> dict[str, Versions]:
    """Return {name: versions} of the small files of `.segstore` that have changed."""
    found = {}
    for name, data in small.items():
        had = state.files.get(name, ())
        now = with_version(had, time, data)
        if now is not had:
            found[name] = now[-1:] if name in NEWEST_ONLY else now[-MOST_VERSIONS:]
    return found
