"""The fetches that compare logs with those of their leader, before anything is taken from there: several logs
by one request, outside of the session. Nothing is on disk but through the logs. Threads: the fetcher's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

from segstore.errors import BrokerError
from segstore.protocol.error_codes import Code
from segstore.protocol.fetch_epochs import FINAL_EPOCH, NO_SESSION
from segstore.replica_fetcher.comparison import LogComparison
from segstore.replica_fetcher.fetch_request import FetchTerms, fetch_request, parts_of, version_for
from segstore.replica_fetcher.fetch_session import SessionRequest
from segstore.replica_fetcher.fetched_data import read_part
from segstore.replica_fetcher.followed_log import FollowedLog, Key, Question
from segstore.replica_fetcher.leader_ends import EARLIEST, offset_of
from segstore.wire.connection import BrokerConnection
from segstore.wire.settings import WireConfig

TOGETHER = 128
"""The most logs that are compared by one request: of each some KiB are in memory."""


class Steps(Protocol):
    """What a fetcher does with what comes of one log."""

    def ask(self, followed: FollowedLog) -> Question | None:
        """Return what to fetch next of a log, None if its topic was removed."""

    def run(self, followed: FollowedLog, step: Callable[[], bool]) -> bool:
        """Run a step of a log, and note what prevents it; return whether it got on."""

    def unserved(self, followed: FollowedLog, code: int) -> None:
        """Note an error that the leader answers for one log."""

    def refused(self, code: int) -> None:
        """Note an error of a whole answer. Raises BrokerError."""


class ComparedFetch:
    """Compares the logs that are fetched over one connection."""

    def __init__(
        self, connection: BrokerConnection, terms: FetchTerms, config: WireConfig, steps: Steps
    ) -> None:
        self._connection, self._terms, self._config, self._steps = connection, terms, config, steps
        self._begun: dict[FollowedLog, LogComparison] = {}
        self._waiting: set[FollowedLog] = set()
        """Those that an ordinary fetch has to come before."""

    def step(self, logs: Iterable[FollowedLog]) -> bool:
        """Get on with some of these logs, which are not compared yet; return whether to go on at once. If
        not, the leader has to show more of each of them first, or to say by an ordinary fetch where its log
        ends. Raises as `BrokerConnection.ask`.
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
        """Yield the comparisons that are not at their ends, and don't wait; one whose log has changed since
        begins anew.
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
        """Return what the leader has from the windows' offsets on."""
        positions = {
            each.followed.key: each.question.position._replace(offset=each.at, last_fetched_epoch=-1)
            for each in asked
        }
        version = version_for(self._connection, positions)
        names_them = SessionRequest(positions, (), NO_SESSION, FINAL_EPOCH)
        epoch = self._terms.broker_epoch()
        body = fetch_request(version, names_them, self._terms, epoch, self._config, sizes)
        body.max_wait_ms = 0
        answer = self._connection.ask_in("Fetch", version, body)
        if answer.error_code:
            self._steps.refused(answer.error_code)
        return dict(parts_of(answer, positions))

    def _take(self, each: LogComparison, part: Any, *, was_alone: bool) -> bool:
        data = read_part(part, self._terms.isolation)
        if data.error == Code.OFFSET_OUT_OF_RANGE:
            return self._steps.run(each.followed, lambda: self._begins_later(each))
        if data.error:
            self._steps.unserved(each.followed, data.error)
            return False
        return self._steps.run(each.followed, lambda: each.take(data, was_alone=was_alone))

    def _begins_later(self, each: LogComparison) -> bool:
        """Compare nothing below the leader's log start offset; return whether that lies above the window."""
        try:
            start = offset_of(self._connection, self._terms, each.followed, each.question, EARLIEST)
        except BrokerError as error:
            self._steps.unserved(each.followed, error.code)
            return False
        if start <= each.at:
            return False
        each.begins_at(start)
        return True
