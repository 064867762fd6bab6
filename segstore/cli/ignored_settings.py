"""Settings of a broker that a server of segstore ignores, because they are harmless.

Nothing is on disk. Threads: any. The dicts are never changed.
"""

from __future__ import annotations

_ONE_BROKER = "the server is one broker, with the id 1"
_ONE_COPY = "internal topics have the replicas of the store"
_THREADS = "each listener has one thread, and a few workers"
_KERNEL = "the kernel decides how large these buffers are"
_NOT_AMONG_BROKERS = "there are no other brokers to talk to"

IGNORED: dict[str, str] = {
    **dict.fromkeys(("broker.id", "node.id", "process.roles", "broker.id.generation.enable"), _ONE_BROKER),
    **dict.fromkeys(
        (
            "controller.listener.names",
            "controller.quorum.bootstrap.servers",
            "controller.quorum.voters",
            "zookeeper.connect",
            "zookeeper.connection.timeout.ms",
            "zookeeper.session.timeout.ms",
        ),
        _ONE_BROKER,
    ),
    **dict.fromkeys(
        (
            "inter.broker.listener.name",
            "inter.broker.protocol.version",
            "num.replica.fetchers",
            "sasl.mechanism.controller.protocol",
            "sasl.mechanism.inter.broker.protocol",
            "security.inter.broker.protocol",
        ),
        _NOT_AMONG_BROKERS,
    ),
    **dict.fromkeys(
        (
            "default.replication.factor",
            "offsets.topic.replication.factor",
            "share.coordinator.state.topic.replication.factor",
            "transaction.state.log.min.isr",
            "transaction.state.log.replication.factor",
        ),
        _ONE_COPY,
    ),
    **dict.fromkeys(
        ("background.threads", "num.io.threads", "num.network.threads", "queued.max.requests"), _THREADS
    ),
    **dict.fromkeys(
        ("socket.listen.backlog.size", "socket.receive.buffer.bytes", "socket.send.buffer.bytes"), _KERNEL
    ),
    "delete.topic.enable": "clients may delete topics; allow says who may",
    "log.cleaner.enable": "the log cleaner runs; log.cleaner.threads=0 ends it",
    "metadata.log.dir": "the store's metadata are in the store",
    "num.recovery.threads.per.data.dir": "logs are recovered when they are opened",
}
"""For each name of a setting: the reason for which it has no effect, or how segstore behaves whatever its
value is.
"""

ONLY_TRUE = frozenset({"delete.topic.enable", "log.cleaner.enable"})
"""Ignored settings that are harmless only if their value is `true`."""
