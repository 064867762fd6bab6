"""`TopicChoice`: chooses topics by their names. Nothing is on disk. Threads: any. A `TopicChoice` is
immutable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from segstore.errors import InvalidArgumentError, InvalidTopicError, InvalidTypeError
from segstore.names import check_topic
from segstore.storage.meta.topic_info import INTERNAL

ALL = ".*"
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class TopicChoice:
    """Chooses topics by names and by regular expressions, which must match a whole name. If a text is a valid
    topic name, it is taken as a name, not as a regular expression. If `internal`, all internal topics are
    chosen, too. An internal topic can't be chosen by its name.

    Raises InvalidTypeError. Raises InvalidArgumentError if a regular expression is invalid, or if there is
    neither a name nor a regular expression. Raises InvalidTopicError if a topic name is invalid or is that of
    an internal topic.
    """

    def __init__(self, topics: object, *, internal: bool = False) -> None:
        self.internal = internal
        given = (topics,) if isinstance(topics, str) else topics
        if not isinstance(given, Iterable):
            raise InvalidTypeError(f"topics must be names or patterns, not {type(topics).__name__}")
        self.given = tuple(_checked(each) for each in given)
        if not self.given:
            raise InvalidArgumentError("topics=[]: at least one name or pattern is needed")
        self._names = frozenset(each for each in self.given if _NAME.fullmatch(each))
        self._patterns = tuple(re.compile(each) for each in self.given if not _NAME.fullmatch(each))

    @property
    def names(self) -> list[str] | None:
        """Return the names that were chosen. If regular expressions or internal topics were chosen, too,
        return None.
        """
        return None if self._patterns or self.internal else sorted(self._names)

    @property
    def named(self) -> frozenset[str]:
        """Return the names of the topics that were chosen by name."""
        return self._names

    def has(self, topic: str) -> bool:
        """Return whether a topic is chosen."""
        if topic in INTERNAL:
            return self.internal
        return topic in self._names or any(each.fullmatch(topic) for each in self._patterns)


def _checked(each: object) -> str:
    if not isinstance(each, str):
        raise InvalidTypeError(f"topics: {each!r} is a {type(each).__name__}, not a str")
    if each in INTERNAL:
        raise InvalidTopicError(f"topic {each!r} is internal: committed offsets are mirrored by themselves")
    if _NAME.fullmatch(each):
        check_topic(each)
        return each
    try:
        re.compile(each)
    except re.error as error:
        raise InvalidArgumentError(f"topics: {each!r} is no regular expression: {error}") from None
    return each
