"""`FollowedTopics`: gives this store topics with the ids, partitions and settings of the source's topics.
(The source is the mirrored cluster, or the standby's primary.)

On disk `TopicAdmin` changes the settings and directories of topics. Threads: only one thread calls `take`.
Any thread may read `problems`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from segstore import names
from segstore.choices import DELETE, KEEP
from segstore.config import TopicConfig
from segstore.logger import Logger
from segstore.protocol.error_codes import broker_error
from segstore.replica_fetcher.followed_log import FollowedLog, Key
from segstore.replica_fetcher.settings import FollowingConfig
from segstore.replica_fetcher.source_answers import faults
from segstore.replica_fetcher.topic_configs import TopicConfigs
from segstore.replica_fetcher.topic_filter import TopicChoice
from segstore.storage.meta.topic_info import TopicInfo
from segstore.storage.store.writer import StoreWriter
from segstore.wire.cluster import Cluster
from segstore.wire.metadata import NO_LEADER, ClusterMetadata, LeaderAndEpoch, Topic

log = Logger("segstore")
CONSUMER = -1
"""The replica id that a consumer sends in a Fetch request (Kafka: FetchRequest.CONSUMER_REPLICA_ID)."""


class FollowedTopics:
    """The followed topics: the topics of this store that replicate topics of the source. `recreated` says
    what happens if a topic was deleted and created again at the source. If `recreated` is "keep", the old
    topic stays here, and the new topic is ignored. If `recreated` is "replace", the old topic is deleted
    here, and the new topic is replicated. "delete" means the same as "replace", and topics that the source
    does not have any more are deleted here, too. (Standbys use "delete".) `replica_id` is the id of this
    store's replicas. If this store is a mirror, `replica_id` is `CONSUMER`.
    """

    def __init__(
        self,
        writer: StoreWriter,
        choice: TopicChoice,
        cluster: Cluster,
        config: FollowingConfig,
        recreated: str,
        replica_id: int = CONSUMER,
    ) -> None:
        self._writer, self._choice, self._config, self._recreated = writer, choice, config, recreated
        self._replica_id = replica_id
        self._configs = TopicConfigs(cluster)
        self._logs: dict[Key, FollowedLog] = {}
        self._settings_due = 0.0
        self.problems: Mapping[str, str] = {}
        """For each topic that can't be followed: its name, and the reason."""
        self.on_cut: Callable[[tuple[str, ...]], None] | None = None
        """A function that is called after a truncation or a deletion, with the paths of copies of the removed
        segments in the quarantine.
        """
        self.own: frozenset[str] = frozenset()
        """Ids of topics that this store has created and the source has never had. Before such a topic is
        deleted here, its logs are copied to the quarantine.
        """
        self.waits = False
        """Whether the next metadata request must be made soon, because a topic can't be followed, or a
        partition has no leader.
        """

    def take(self, metadata: ClusterMetadata) -> dict[Key, LeaderAndEpoch]:
        """Create, change and delete topics so that they match the source's metadata. Return the leaders of
        the partitions to replicate. Raises StorageError and the errors of `Cluster.ask`.
        """
        found = {name: each for name, each in metadata.topics.items() if self._choice.has(name)}
        problems = {name: fault for name, fault in faults(metadata).items() if name in found}
        settings = self._settings({name: found[name] for name in found.keys() - problems.keys()})
        leaders: dict[Key, LeaderAndEpoch] = {}
        for name, topic in sorted(found.items()):
            problem = problems.get(name) or self._problem(topic)
            if problem is not None:
                problems[name] = problem
                continue
            self._make(topic, settings.get(name))
            for number, led in topic.partitions.items():
                leaders[Key(name, topic.topic_id, number)] = led
        self.own -= {topic.topic_id for topic in found.values()}
        for name in self._gone(found):
            if self._recreated == DELETE and name not in self._choice.named:
                self._delete(name)
                continue
            problems[name] = f"topic {name!r} is not there at the source"
        self._log_new(problems)
        self.waits = bool(problems) or any(led.leader == NO_LEADER for led in leaders.values())
        self._logs = {key: self._logs.get(key) or self._followed(key) for key in leaders}
        return leaders

    @property
    def logs(self) -> Iterable[FollowedLog]:
        """Return the logs of the partitions that the last `take` returned."""
        return self._logs.values()

    def _problem(self, topic: Topic) -> str | None:
        known = self._writer.topics.get(topic.name)
        if topic.error:
            return str(broker_error(topic.error, f"topic {topic.name!r}"))
        if not topic.topic_id:
            return f"topic {topic.name!r} has no id: Kafka has them from 2.8 on"
        if known is None or known.topic_id == topic.topic_id or self._recreated != KEEP:
            return None
        return (
            f"topic {topic.name!r} was deleted at the source, and made anew with id {topic.topic_id}: what"
            f" was mirrored of {known.topic_id} stays, and the new one is not mirrored"
            ' (recreated="replace" would do the opposite)'
        )

    def _gone(self, found: Mapping[str, Topic]) -> set[str]:
        return {*self._choice.named, *filter(self._choice.has, self._writer.topics)} - found.keys()

    def _delete(self, name: str) -> None:
        log.warning("topic %r was deleted at the source, and is deleted here", name)
        self._keep(self._writer.topics.get(name))
        self._writer.topic_admin.delete(name)

    def _keep(self, topic: TopicInfo | None) -> None:
        """If only this store has a topic, copy the topic's logs to the quarantine. Called before the topic is
        deleted.
        """
        if topic is None or topic.topic_id not in self.own:
            return
        replicas = (self._writer.partitions.replica(topic.name, number) for number in topic.partition_ids)
        kept = tuple(path for replica in replicas for path in replica.keep_all())
        if kept and self.on_cut is not None:
            self.on_cut(kept)

    def _log_new(self, problems: Mapping[str, str]) -> None:
        for name, problem in problems.items():
            if self.problems.get(name) != problem:
                log.warning("%s", problem)
        self.problems = problems

    # --- changes ----------------------------------------------------------------------------------

    def _settings(self, found: Mapping[str, Topic]) -> dict[str, TopicConfig]:
        """Return the settings that the source has for new topics. Every sync.topic.configs.interval.seconds,
        return the settings of all topics.
        """
        if not self._config.sync_topic_configs_enabled:
            return {}
        good = [name for name, topic in found.items() if not topic.error]
        now = time.monotonic()
        if now >= self._settings_due:
            self._settings_due = now + self._config.sync_topic_configs_interval_seconds
            return self._configs.of(good)
        return self._configs.of(name for name in good if name not in self._writer.topics)

    def _make(self, topic: Topic, settings: TopicConfig | None) -> None:
        admin, name = self._writer.topic_admin, topic.name
        known = self._writer.topics.get(name)
        if known is not None and known.topic_id != topic.topic_id:
            log.warning("topic %r was made anew at the source, and replaces what was mirrored", name)
            self._keep(known)
            admin.delete(name)
            known = None
        # The topic may have been compacted at the source, even if its settings do not allow compaction any
        # more. So its logs may have gaps.
        gaps = dict.fromkeys(topic.partitions, names.MAX_OFFSET)
        if known is None:
            ids = tuple(sorted(topic.partitions))
            made = TopicInfo(name, ids, topic.topic_id, settings or TopicConfig())
            admin.make(replace(made, compacted=tuple(sorted(gaps.items()))))
            return
        ids = tuple(sorted({*known.partition_ids, *topic.partitions}))
        wanted = replace(known, partition_ids=ids, settings=known.settings if settings is None else settings)
        if (wanted.partition_ids, wanted.settings) != (known.partition_ids, known.settings):
            admin.remember_gaps(name, gaps)
            admin.make(replace(wanted, compacted=self._writer.topics[name].compacted))

    def _followed(self, key: Key) -> FollowedLog:
        replica = self._writer.partitions.replica(key.topic, key.partition)
        followed = FollowedLog(key.topic, key.topic_id, key.partition, replica, self._replica_id)
        followed.on_cut = self.on_cut
        return followed
