"""`ComparedFetch`: makes fetches to compare logs of this store with the leader's logs. A log is compared
before batches of the leader are appended to it. One request fetches for several logs, outside of the fetch
session.

On disk only the logs are changed. Threads: only the fetcher's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

from segstore.errors import BrokerError
from segstore.protocol.error_codes import Code
from segstore.replica_fetcher.comparison import LogComparison
from segstore.replica_fetcher.fetch_request import parts_of
from segstore.replica_fetcher.fetched_data import read_part
from segstore.replica_fetcher.followed_log import FollowedLog, Key, Question
from segstore.replica_fetcher.remote_end_point import RemoteEndPoint

TOGETHER = 128
"""The largest number of logs in one request. The request takes some KiB of memory for each log."""


class Steps(Protocol):
    """Methods of the fetcher that `ComparedFetch` calls."""

    def ask(self, followed: FollowedLog) -> Question | None:
        """Return a log's next fetch, None if the log's topic was removed."""

    def run(self, followed: FollowedLog, step: Callable[[], bool]) -> bool:
        """Call `step`, and return its result. If `step` raises an error, handle the error (for example, delay
        the log's next fetch), and return False.
        """

    def unserved(self, followed: FollowedLog, code: int) -> None:
        """Handle an error code that the leader has answered for one log."""

    def refused(self, code: int) -> None:
        """Handle an error code that the leader has answered for the whole request. Raises BrokerError, unless
        the code is an error of the fetch session.
        """


class ComparedFetch:
    """Compares the logs that are fetched over one connection."""

    def __init__(self, leader: RemoteEndPoint, steps: Steps) -> None:
        self._leader, self._steps = leader, steps
        self._begun: dict[FollowedLog, LogComparison] = {}
        self._waiting: set[FollowedLog] = set()
        """The logs whose comparison can continue only after a fetch that is not part of the comparison."""

    def step(self, logs: Iterable[FollowedLog]) -> bool:
        """Compare the next window of some of these logs, and return True: the caller calls `step` again at
        once. If each comparison must wait for an ordinary fetch (one that is not part of a comparison),
        compare nothing, and return False. The answer to an ordinary fetch may have a diverging epoch or a
        higher high watermark. Raises the errors of `BrokerConnection.ask`.
        """
        ready = list(islice(self._ready(logs), TOGETHER))
        alone = [each for each in ready if each.alone][:1]
        asked = alone or ready
        if not asked:
            self._waiting.clear()
            return False
        parts = self._fetched(asked, {} if alone else {each.followed.key: each.most_bytes for each in asked})
        for each in asked:
            part = parts.get(each.followed.key)
            if part is None or not self._take(each, part, was_alone=len(asked) == 1):
                self._waiting.add(each.followed)
        return True

    def _ready(self, logs: Iterable[FollowedLog]) -> Iterator[LogComparison]:
        """Yield the comparisons that can continue now. Comparisons that wait for an ordinary fetch are left
        out. If a log has changed, its comparison begins anew.
        """
        for followed in logs:
            if followed in self._waiting or (question := self._steps.ask(followed)) is None:
                continue
            held = self._begun.get(followed)
            if held is None or held.question[:2] != question[:2]:
                held = self._begun[followed] = LogComparison(followed, question)
            if held.window is not None:
                yield held
                continue
            del self._begun[followed]
            followed.compared(question)

    def _fetched(self, asked: list[LogComparison], sizes: Mapping[Key, int]) -> dict[Key, Any]:
        """Fetch batches for each comparison, beginning at the offset of its window. Return {key of the
        partition: the partition's data in the answer}.
        """
        positions = {
            each.followed.key: each.question.position._replace(offset=each.at, last_fetched_epoch=-1)
            for each in asked
        }
        answer = self._leader.fetch(positions, sizes)
        if answer.error_code:
            self._steps.refused(answer.error_code)
        return dict(parts_of(answer, positions))

    def _take(self, each: LogComparison, part: Any, *, was_alone: bool) -> bool:
        data = read_part(part, self._leader.terms.isolation)
        if data.error == Code.OFFSET_OUT_OF_RANGE:
            return self._steps.run(each.followed, lambda: self._begins_later(each))
        if data.error:
            self._steps.unserved(each.followed, data.error)
            return False
        return self._steps.run(each.followed, lambda: each.take(data, was_alone=was_alone))

    def _begins_later(self, each: LogComparison) -> bool:
        """If the leader's log start offset is above the window's offset, continue the comparison at the
        leader's log start offset, and return True. If the leader's log does not begin above the window,
        return False.
        """
        try:
            start = self._leader.earliest_offset(each.followed, each.question)
        except BrokerError as error:
            self._steps.unserved(each.followed, error.code)
            return False
        if start <= each.at:
            return False
        each.begins_at(start)
        return True
