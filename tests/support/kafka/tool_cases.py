"""Calls of Kafka's tools, in the order in which tests/server/test_java_all_tools.py makes them. In their
arguments AT is the server's address, FILES a folder with the FILES, LOGS the server's log directory.
"""

from __future__ import annotations

from typing import NamedTuple

from tool_views import View, apis, directories, found, in_any_order, latest, plain, settings, without

ONE = ' {"topic": "one", "partition": 0'
FILES = {
    "offsets.json": f'{{"version": 1, "partitions": [{ONE}, "offset": 2}}]}}',
    "beyond.json": f'{{"version": 1, "partitions": [{ONE}, "offset": 999}}]}}',
    "here.json": f'{{"version": 1, "partitions": [{ONE}, "replicas": [1]}}]}}',
    "elsewhere.json": f'{{"version": 1, "partitions": [{ONE}, "replicas": [2]}}]}}',
    "topics.json": '{"version": 1, "topics": [{"topic": "one"}]}',
    "elect.json": f'{{"partitions": [{ONE}}}]}}',
    "commits.csv": "one,0,1\n",
    "empty.properties": "",
    "connect.properties": (
        "bootstrap.servers=AT\ngroup.id=connect\nconfig.storage.topic=connect-configs\n"
        "offset.storage.topic=connect-offsets\nstatus.storage.topic=connect-status\n"
        "offset.storage.replication.factor=1\nstatus.storage.replication.factor=1\n"
        "config.storage.replication.factor=1\noffset.storage.partitions=2\nstatus.storage.partitions=2\n"
        "key.converter=org.apache.kafka.connect.json.JsonConverter\n"
        "value.converter=org.apache.kafka.connect.json.JsonConverter\n"
    ),
}
TOPICS, CONFIGS, GROUPS = "TopicCommand", "ConfigCommand", "consumer.group.ConsumerGroupCommand"
PRODUCER, CONSUMER, DUMP = "ConsoleProducer", "consumer.ConsoleConsumer", "DumpLogSegments"
TXN, REASSIGN, ELECT = "TransactionsCommand", "reassign.ReassignPartitionsCommand", "LeaderElectionCommand"
SHARE, STREAMS = "consumer.group.ShareGroupCommand", "streams.StreamsGroupCommand"
FEATURES, QUORUM, OFFSETS = "FeatureCommand", "MetadataQuorumCommand", "GetOffsetShell"
NO_SERVER = frozenset({DUMP})
"""Tools that read files."""


class Case(NamedTuple):
    """A call: the class of the tool below org.apache.kafka.tools, its arguments, its standard input, and what
    of its output counts.
    """

    tool: str
    arguments: str = ""
    text: str = ""
    view: View = plain


READ = "--from-beginning --timeout-ms 20000"
FORMATTER = "--formatter org.apache.kafka.tools.consumer"
PRINTED = " ".join(
    f"--formatter-property print.{each}=true"
    for each in ("timestamp", "key", "offset", "delivery", "epoch", "partition", "headers")
)
KEYED = (
    "--reader-property parse.key=true --reader-property parse.headers=true --reader-property null.marker=-"
)
VERIFIED = "--topic one --max-messages 5 --reset-policy earliest"
INTERNAL = "--partition 0 --offset earliest --timeout-ms 3000"
ASSIGNED = without(r'.*"partitions_assigned","partitions":\[\]\}\n')
"""A member may be told that it has nothing yet."""
PERFORMED = found(r"^(\d+) records sent")

SERVED: dict[str, Case] = {
    # --- topics ---
    "create": Case(TOPICS, "--create --topic one --config retention.ms=100000000"),
    "create more": Case(TOPICS, "--create --topic more --partitions 3 --config min.insync.replicas=1"),
    "create again": Case(TOPICS, "--create --topic one"),
    "create if it is not there": Case(TOPICS, "--create --topic one --if-not-exists"),
    "create by a wrong name": Case(TOPICS, "--create --topic a+b"),
    "create with an underscore": Case(TOPICS, "--create --topic a_b"),
    "create with a dot": Case(TOPICS, "--create --topic a.b"),
    "create three replicas": Case(TOPICS, "--create --topic three --replication-factor 3"),
    "create no partition": Case(TOPICS, "--create --topic none --partitions 0"),
    "create in places": Case(TOPICS, "--create --topic placed --replica-assignment 1,1"),
    "create with an unknown setting": Case(TOPICS, "--create --topic wrong --config foo=1"),
    "create with a wrong value": Case(TOPICS, "--create --topic wrong --config retention.ms=soon"),
    "list": Case(TOPICS, "--list"),
    "list without internal ones": Case(TOPICS, "--list --exclude-internal"),
    "describe": Case(TOPICS, "--describe --topic one"),
    "describe a missing one": Case(TOPICS, "--describe --topic missing"),
    "describe one that may be missing": Case(TOPICS, "--describe --topic missing --if-exists"),
    "describe those with settings": Case(
        TOPICS, "--describe --topics-with-overrides", view=without(r",?retention\.ms=-1")
    ),
    "describe those without enough replicas": Case(TOPICS, "--describe --under-replicated-partitions"),
    "describe those without a leader": Case(TOPICS, "--describe --unavailable-partitions"),
    "describe those below min.insync": Case(TOPICS, "--describe --under-min-isr-partitions"),
    "describe those at min.insync": Case(TOPICS, "--describe --at-min-isr-partitions"),
    "describe in pages": Case(
        TOPICS,
        "--describe --partition-size-limit-per-response 1",
        view=without(r",?retention\.ms=-1"),
    ),
    "grow": Case(TOPICS, "--alter --topic more --partitions 4"),
    "shrink": Case(TOPICS, "--alter --topic more --partitions 1"),
    "grow a missing one": Case(TOPICS, "--alter --topic missing --partitions 2"),
    "delete a missing one": Case(TOPICS, "--delete --topic missing"),
    "delete": Case(TOPICS, "--delete --topic a_b"),
    # --- console producer and consumer ---
    "produce": Case(PRODUCER, "--topic one", "first\nsecond\n"),
    "produce with keys and headers": Case(
        PRODUCER, f"--topic one {KEYED}", "a:1,b:2\tkey\tthird\n-\tkey\t-\nc:-\t\u00e4\tfifth\n"
    ),
    "produce compressed": Case(PRODUCER, "--topic one --compression-codec zstd --sync", "sixth\n"),
    "produce without acks": Case(PRODUCER, "--topic one --request-required-acks 0", "seventh\n"),
    "produce to a new topic": Case(PRODUCER, "--topic new", "x\n"),
    "consume": Case(CONSUMER, f"--topic one {READ} --max-messages 7 {PRINTED}"),
    "consume a partition": Case(CONSUMER, "--topic one --partition 0 --offset 1 --max-messages 1"),
    "consume in a group": Case(CONSUMER, f"--topic one {READ} --max-messages 7 --group classic"),
    "consume by KIP-848": Case(
        CONSUMER,
        f"--topic one {READ} --max-messages 7 --group modern --command-property group.protocol=consumer",
    ),
    "consume by an expression": Case(CONSUMER, f"--include ne.* {READ} --max-messages 1"),
    "consume what is committed": Case(
        CONSUMER, f"--topic one {READ} --max-messages 7 --isolation-level read_committed"
    ),
    "consume nothing": Case(CONSUMER, "--topic new --timeout-ms 1000 --partition 0 --offset latest"),
    "consume into a log": Case(
        CONSUMER, f"--topic one {READ} --max-messages 7 {FORMATTER}.LoggingMessageFormatter"
    ),
    "consume into nothing": Case(
        CONSUMER, f"--topic one {READ} --max-messages 7 {FORMATTER}.NoOpMessageFormatter"
    ),
    # --- performance ---
    "measure a producer": Case(
        "ProducerPerformance",
        "--bootstrap-server AT --topic perf --num-records 500 --record-size 100 --throughput -1",
        view=PERFORMED,
    ),
    "measure transactions": Case(
        "ProducerPerformance",
        "--bootstrap-server AT --topic perf --num-records 500 --record-size 100 --throughput -1 "
        "--transactional-id measured --transaction-duration-ms 5000",
        view=PERFORMED,
    ),
    "measure with metrics": Case(
        "ProducerPerformance",
        "--bootstrap-server AT --topic perf --num-records 50 --record-size 10 --throughput -1 "
        "--print-metrics --warmup-records 10",
        view=found(r"^producer-topic-metrics:record-send-total\S* +: \S+"),
    ),
    "measure a consumer": Case(
        "ConsumerPerformance",
        "--topic perf --num-records 1050 --timeout 20000 --hide-header "
        "--command-property max.poll.records=50",
        view=found(r"^\S+ \S+ \S+ \S+ \S+ \S+ (\d+),"),
    ),
    "measure end to end": Case(
        "EndToEndLatency",
        "--bootstrap-server AT --topic e2e --num-records 20 --producer-acks all --record-size 20 "
        "--num-headers 1",
        view=found(r"^(Avg latency|Percentiles)"),
    ),
    # --- clients of system tests ---
    "verify a producer": Case(
        "VerifiableProducer",
        "--topic verified --max-messages 5 --acks -1 --value-prefix 3 --repeating-keys 2",
        view=without(r'"avg_throughput":[^,}]*'),
    ),
    "verify a consumer": Case("VerifiableConsumer", f"{VERIFIED} --group-id vc --verbose"),
    "verify a static consumer": Case(
        "VerifiableConsumer",
        f"{VERIFIED} --group-id vs --group-instance-id i --session-timeout 600000 "
        "--assignment-strategy org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    ),
    "verify a consumer of KIP-848": Case(
        "VerifiableConsumer",
        f"{VERIFIED} --group-id vm --verbose --group-protocol consumer",
        view=ASSIGNED,
    ),
    "verify a consumer that names an assignor": Case(
        "VerifiableConsumer",
        f"{VERIFIED} --group-id va --group-protocol consumer --group-remote-assignor range "
        "--enable-autocommit",
        view=ASSIGNED,
    ),
    "copy in transactions": Case(
        "TransactionalMessageCopier",
        "--broker-list AT --input-topic one --input-partition 0 --output-topic copied --max-messages 7 "
        "--consumer-group copier --transactional-id copier --transaction-size 7",
    ),
    "test compatibility": Case(
        "ClientCompatibilityTest",
        "--bootstrap-server AT --topic compatible --num-cluster-nodes 1 --offsets-for-times-supported true "
        "--cluster-id-supported true --expect-record-too-large-exception false --create-topics-supported "
        "true --describe-acls-supported true --describe-configs-supported true "
        "--idempotent-producer-supported true",
    ),
    # --- settings and quotas ---
    "set": Case(CONFIGS, "--alter --topic more --add-config flush.ms=9,cleanup.policy=[compact,delete]"),
    "delete a setting": Case(CONFIGS, "--alter --topic more --delete-config flush.ms"),
    "delete what is not set": Case(CONFIGS, "--alter --topic more --delete-config flush.messages"),
    "set what is not known": Case(CONFIGS, "--alter --topic more --add-config foo=1"),
    "set wrongly": Case(CONFIGS, "--alter --topic more --add-config retention.ms=soon"),
    "set for a missing topic": Case(CONFIGS, "--alter --topic missing --add-config retention.ms=1"),
    "settings of a topic": Case(CONFIGS, "--describe --topic more"),
    "settings of all topics": Case(
        CONFIGS,
        "--describe --entity-type topics",
        view=without(r"^ (retention\.ms|min\.insync\.replicas)=.*\n"),
    ),
    "settings of a broker": Case(CONFIGS, "--describe --broker 1"),
    "settings of all brokers": Case(CONFIGS, "--describe --broker-defaults"),
    "settings of brokers": Case(CONFIGS, "--describe --entity-type brokers"),
    "delete of a broker": Case(CONFIGS, "--alter --broker 1 --delete-config log.cleaner.threads"),
    "set a logger": Case(CONFIGS, "--alter --broker-logger 1 --add-config none.such=INFO"),
    "limit a client": Case(
        CONFIGS, "--alter --client c --add-config producer_byte_rate=9,consumer_byte_rate=8"
    ),
    "limit all clients": Case(CONFIGS, "--alter --client-defaults --add-config producer_byte_rate=7000000"),
    "limit a user": Case(CONFIGS, "--alter --user u --add-config producer_byte_rate=1000"),
    "limit a client of a user": Case(
        CONFIGS,
        "--alter --entity-type users --entity-name u --entity-type clients --entity-name c --add-config "
        "producer_byte_rate=1000",
    ),
    "limits of clients": Case(CONFIGS, "--describe --entity-type clients"),
    "limits of users": Case(CONFIGS, "--describe --entity-type users"),
    "limits of clients of users": Case(CONFIGS, "--describe --entity-type users --entity-type clients"),
    "limits of addresses": Case(CONFIGS, "--describe --entity-type ips"),
    "take a limit back": Case(CONFIGS, "--alter --client c --delete-config producer_byte_rate"),
    "limit by another rate": Case(CONFIGS, "--alter --client c --add-config foo=1"),
    "make a user": Case(CONFIGS, "--alter --user u --add-config SCRAM-SHA-256=[iterations=8192,password=p]"),
    "describe a user": Case(CONFIGS, "--describe --user u"),
    "delete a user": Case(CONFIGS, "--alter --user u --delete-config SCRAM-SHA-256"),
    "set for a group": Case(
        CONFIGS, "--alter --group classic --add-config consumer.session.timeout.ms=50000"
    ),
    "set wrongly for a group": Case(
        CONFIGS, "--alter --group classic --add-config consumer.session.timeout.ms=1"
    ),
    "set what is not known for a group": Case(CONFIGS, "--alter --group classic --add-config foo=1"),
    "settings of a group": Case(CONFIGS, "--describe --group classic"),
    "settings of groups": Case(CONFIGS, "--describe --entity-type groups", view=in_any_order),
    "settings of metrics": Case(CONFIGS, "--describe --entity-type client-metrics"),
    "list metrics": Case("ClientMetricsCommand", "--list"),
    "describe metrics": Case("ClientMetricsCommand", "--describe"),
    # --- groups ---
    "list groups": Case(GROUPS, "--list", view=in_any_order),
    "list classic groups": Case(GROUPS, "--list --type classic --state", view=in_any_order),
    "list groups of KIP-848": Case(GROUPS, "--list --type consumer"),
    "list stable groups": Case(GROUPS, "--list --state stable"),
    "describe a group": Case(GROUPS, "--describe --group classic"),
    "describe a group of KIP-848": Case(GROUPS, "--describe --group modern --verbose"),
    "states of groups": Case(GROUPS, "--describe --group classic --group modern --state"),
    "members of groups": Case(GROUPS, "--describe --group classic --group modern --members --verbose"),
    "describe a missing group": Case(GROUPS, "--describe --group missing"),
    "validate an expression": Case(GROUPS, "--validate-regex a.*"),
    "try to reset": Case(GROUPS, "--reset-offsets --group classic --topic one --to-earliest --dry-run"),
    "reset to the beginning": Case(
        GROUPS, "--reset-offsets --group classic --topic one --to-earliest --execute"
    ),
    "reset by a number": Case(GROUPS, "--reset-offsets --group classic --topic one:0 --shift-by 3 --execute"),
    "reset beyond the end": Case(
        GROUPS, "--reset-offsets --group classic --topic one:0 --to-offset 99 --execute"
    ),
    "reset by a date": Case(
        GROUPS,
        "--reset-offsets --group classic --topic one --to-datetime 2020-01-01T00:00:00.000 --execute",
    ),
    "reset by a duration": Case(
        GROUPS, "--reset-offsets --group modern --topic one --by-duration P1D --execute"
    ),
    "export offsets": Case(
        GROUPS, "--reset-offsets --group classic --topic one --to-current --export --dry-run"
    ),
    "import offsets": Case(GROUPS, "--reset-offsets --group classic --from-file FILES/commits.csv --execute"),
    "reset a new group": Case(
        GROUPS, "--reset-offsets --group fresh --topic more --to-latest --execute", view=found(r"^fresh.*")
    ),
    "describe what was reset": Case(GROUPS, "--describe --group classic"),
    "delete offsets": Case(GROUPS, "--delete-offsets --group classic --topic one:0"),
    "delete offsets of a missing topic": Case(GROUPS, "--delete-offsets --group classic --topic missing"),
    "delete groups": Case(GROUPS, "--delete --group fresh --group va"),
    "delete a missing group": Case(GROUPS, "--delete --group missing"),
    "all groups": Case("GroupsCommand", "--list", view=in_any_order),
    "all groups of consumers": Case("GroupsCommand", "--list --consumer", view=in_any_order),
    "all groups of KIP-848": Case("GroupsCommand", "--list --group-type consumer"),
    "share groups": Case(SHARE, "--list"),
    "states of share groups": Case(SHARE, "--list --state"),
    "all share groups": Case(SHARE, "--describe --all-groups"),
    "share groups among groups": Case("GroupsCommand", "--list --share"),
    "choose where a share group begins": Case(
        CONFIGS,
        "--alter --entity-type groups --entity-name shared --add-config share.auto.offset.reset=earliest",
    ),
    "settings of a share group": Case(
        CONFIGS, "--describe --entity-type groups --entity-name shared", view=in_any_order
    ),
    "consume in a share group": Case(
        "consumer.ConsoleShareConsumer",
        "--topic one --group shared --max-messages 5 --timeout-ms 30000",
        view=in_any_order,
    ),
    "describe a share group": Case(SHARE, "--describe --group shared"),
    "the state of a share group": Case(SHARE, "--describe --group shared --state"),
    "members of a share group": Case(SHARE, "--describe --group shared --members --verbose"),
    "a share group among share groups": Case(SHARE, "--list --state"),
    "a share group among groups": Case("GroupsCommand", "--list --share"),
    "reset a share group": Case(
        SHARE, "--reset-offsets --group shared --topic one --to-earliest --execute", view=in_any_order
    ),
    "describe a share group that was reset": Case(SHARE, "--describe --group shared"),
    "measure a share group": Case(
        "ShareConsumerPerformance",
        "--topic one --num-records 5 --group shared --timeout 30000",
        view=found(r"^start.time.*"),
    ),
    "verify a share consumer": Case(
        "VerifiableShareConsumer",
        "--topic one --group-id verified --max-messages 5 --offset-reset-strategy earliest",
        view=found(r'"name":"(startup_complete|offset_reset_strategy_set|shutdown_\w+)"'),
    ),
    "delete offsets of a share group": Case(
        SHARE, "--delete-offsets --group shared --topic one --topic missing", view=in_any_order
    ),
    "delete share groups": Case(SHARE, "--delete --group shared --group verified", view=in_any_order),
    "delete a missing share group": Case(SHARE, "--delete --group missing"),
    "describe a missing share group": Case(SHARE, "--describe --group missing"),
    "streams groups": Case(STREAMS, "--list"),
    "all streams groups": Case(STREAMS, "--describe --all-groups"),
    "streams groups among groups": Case("GroupsCommand", "--list --streams"),
    "reset an application": Case(
        "StreamsResetter", "--application-id app --bootstrap-server AT --input-topics one"
    ),
    # --- transactions; one of the id "open" is open ---
    "list transactions": Case(TXN, "--bootstrap-server AT list", view=in_any_order),
    "list long transactions": Case(TXN, "--bootstrap-server AT list --duration-filter 10000000"),
    "list transactions by name": Case(TXN, "--bootstrap-server AT list --transactional-id-pattern o.*"),
    "describe a transaction": Case(
        TXN, "--bootstrap-server AT describe --transactional-id open", view=without(r"(?<=\tMS) \t\d+")
    ),
    "describe a missing transaction": Case(TXN, "--bootstrap-server AT describe --transactional-id missing"),
    "describe producers": Case(TXN, "--bootstrap-server AT describe-producers --topic txn --partition 0"),
    "find what hangs": Case(TXN, "--bootstrap-server AT find-hanging --broker-id 1"),
    "abort no transaction": Case(
        TXN, "--bootstrap-server AT abort --topic txn --partition 0 --start-offset 7"
    ),
    "end a transaction": Case(TXN, "--bootstrap-server AT forceTerminateTransaction --transactionalId open"),
    "list ended transactions": Case(TXN, "--bootstrap-server AT list", view=in_any_order),
    # --- logs ---
    "offsets": Case(OFFSETS, "--topic one|txn|new"),
    "offsets of partitions": Case(OFFSETS, "--topic-partitions one:0,more:1-3 --time earliest"),
    "newest records": Case(OFFSETS, "--topic one --time max-timestamp"),
    "local offsets": Case(OFFSETS, "--topic one --time earliest-local"),
    "tiered offsets": Case(OFFSETS, "--topic one --time latest-tiered"),
    "offsets that wait for upload": Case(OFFSETS, "--topic one --time earliest-pending-upload"),
    "offsets by time": Case(OFFSETS, "--topic one --time 1000"),
    "offsets of a missing topic": Case(OFFSETS, "--topic missing"),
    "delete records": Case("DeleteRecordsCommand", "--offset-json-file FILES/offsets.json"),
    "delete too many records": Case("DeleteRecordsCommand", "--offset-json-file FILES/beyond.json"),
    "directories": Case("LogDirsCommand", "--describe --topic-list one", view=directories),
    "directories of missing brokers": Case("LogDirsCommand", "--describe --broker-list 1,2"),
    "dump records": Case(
        DUMP,
        "--files LOGS/one-0/00000000000000000000.log --deep-iteration --print-data-log",
        view=found(r"^\| offset: \d+|keySize: .*| (?:key|payload): .*|isvalid: \w+"),
    ),
    "dump offsets": Case(
        DUMP, "--files LOGS/__consumer_offsets-0/00000000000000000000.log --offsets-decoder", view=latest
    ),
    "dump transactions": Case(
        DUMP,
        "--files LOGS/__transaction_state-0/00000000000000000000.log --transaction-log-decoder",
        view=latest,
    ),
    "check indexes": Case(
        DUMP,
        "--files LOGS/one-0/00000000000000000000.index --index-sanity-check",
    ),
    "consume offsets": Case(
        CONSUMER,
        f"--topic __consumer_offsets {INTERNAL} {FORMATTER}.OffsetsMessageFormatter",
        view=found(
            r'"group":"v\w","topic":"one","partition":0\}\},"value":\{"version":4,"data":\{"offset":\d+'
        ),
    ),
    "consume metadata of groups": Case(
        CONSUMER,
        f"--topic __consumer_offsets {INTERNAL} {FORMATTER}.GroupMetadataMessageFormatter",
        view=found(
            r'"group":"v\w"\}\},"value":\{"version":\d,"data":\{"protocolType":"consumer","gen\w+":\d'
        ),
    ),
    "consume transactions": Case(
        CONSUMER,
        f"--topic __transaction_state {INTERNAL} {FORMATTER}.TransactionLogMessageFormatter",
        view=found(r'"transactionalId":"measured"\}\},.*?"transactionStatus":("\w+")'),
    ),
    # --- the cluster ---
    "identify the cluster": Case("ClusterTool", "cluster-id --bootstrap-server AT"),
    "list endpoints": Case("ClusterTool", "list-endpoints --bootstrap-server AT"),
    "unregister a missing broker": Case("ClusterTool", "unregister --bootstrap-server AT --id 7"),
    "features": Case(
        FEATURES,
        "--bootstrap-server AT describe",
        view=without(r"^Feature: streams\.version.*\n|Epoch: \d+"),
    ),
    "features of a release": Case(FEATURES, "--bootstrap-server AT version-mapping --release-version 4.4"),
    "status of the quorum": Case(QUORUM, "--bootstrap-server AT describe --status", view=found(r"^\w+:")),
    "replication of the quorum": Case(
        QUORUM, "--bootstrap-server AT describe --replication", view=without(r"\d+ (?=\t0 )")
    ),
    "elect": Case(ELECT, "--election-type preferred --all-topic-partitions"),
    "elect one": Case(ELECT, "--election-type unclean --topic one --partition 0"),
    "elect those of a file": Case(ELECT, "--election-type preferred --path-to-json-file FILES/elect.json"),
    "elect a missing one": Case(ELECT, "--election-type preferred --topic missing --partition 0"),
    "list reassignments": Case(REASSIGN, "--list"),
    "plan a reassignment": Case(
        REASSIGN, "--generate --topics-to-move-json-file FILES/topics.json --broker-list 1"
    ),
    "reassign": Case(REASSIGN, "--execute --reassignment-json-file FILES/here.json"),
    "verify a reassignment": Case(REASSIGN, "--verify --reassignment-json-file FILES/here.json"),
    "cancel a reassignment": Case(REASSIGN, "--cancel --reassignment-json-file FILES/here.json"),
    "reassign elsewhere": Case(REASSIGN, "--execute --reassignment-json-file FILES/elsewhere.json"),
    "list acls": Case("AclCommand", "--list"),
    "add acls": Case("AclCommand", "--add --allow-principal User:a --operation Read --topic one"),
    "topics of Connect": Case("ConnectInternalTopics", "create --worker-config FILES/connect.properties"),
    "describe topics of Connect": Case(
        TOPICS, "--describe --topic connect-.*", view=without(r",?retention\.ms=-1")
    ),
}
"""By name: calls that print the same of both servers."""

COMPARED: dict[str, Case] = {
    "all settings of a topic": Case(CONFIGS, "--describe --topic one --all", view=settings),
    "all settings of a broker": Case(CONFIGS, "--describe --broker 1 --all", view=settings),
    "all settings of a group": Case(CONFIGS, "--describe --group classic --all", view=settings),
    "versions of APIs": Case("BrokerApiVersionsCommand", view=apis),
}
"""By name: descriptions of settings and APIs, some of which only one of the servers has."""
