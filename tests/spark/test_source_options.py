"""The source's options and offsets, without a JVM: what is allowed, and what each error says."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stores import START_MS, Clock

import segstore
from segstore.coordinator.structs import TopicPartition
from segstore.errors import ConfigError, CorruptCheckpointError, DataLossError

pytest.importorskip("pyspark", "4.2")

from segstore.spark.offsets import from_json, to_json
from segstore.spark.options import KNOWN, SourceOptions, parse_options
from segstore.spark.plan import Lookup
from segstore.spark.sink_store import parse_sink_options

PATH = {"path": "/store"}
T = {**PATH, "subscribe": "t"}


def test_defaults_are_those_of_spark_s_kafka_source() -> None:
    options = parse_options(T)
    assert (options.fail_on_data_loss, options.include_headers) == (True, False)
    assert (options.isolation_level, options.or_latest) == ("read_uncommitted", False)
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (None, None)
    assert options.max_trigger_delay_ms == 15 * 60_000
    assert options.begin(streaming=True).everywhere == -1
    assert options.begin(streaming=False).everywhere == -2
    assert options.end().everywhere == -1


ALLOWED: dict[str, tuple[dict[str, str], Any, Any]] = {
    "names in any case": ({"MAXRECORDSPERPARTITION": "5"}, lambda o: o.max_records_per_partition, 5),
    "topics with spaces": ({"subscribe": " a, b ,a"}, lambda o: o.subscription.topics, ("a", "b")),
    "file: URL": ({"path": "file:///x/y"}, lambda o: o.path, "/x/y"),
    "directories": ({"path": "/a/b:/c:d/e"}, lambda o: o.paths, ("/a/b", "/c:d/e")),
    "a path with a colon": ({"path": "/a:b"}, lambda o: o.paths, ("/a:b",)),
    "directories and a witness": (
        {"path": "/a:/b", "witness": "/w"},
        lambda o: (o.paths, o.witness),
        (("/a", "/b"), "/w"),
    ),
    "an archive": (
        {"path": "s3://K:S@b/log?region=x"},
        lambda o: (o.paths, o.archive.uri, o.path),
        ((), "s3://K:S@b/log?region=x", "s3://b/log?region=x"),
    ),
    "a store and its archive": (
        {"archive": "file:///a/b"},
        lambda o: (o.path, o.archive.uri, o.archive.opener),
        (PATH["path"], "/a/b", None),
    ),
    "a file system of one's own": (
        {"path": "bucket/log", "archiveFilesystem": "mine:opened"},
        lambda o: (o.paths, o.archive.opener),
        ((), "mine:opened"),
    ),
    "isolation": (
        {"kafka.isolation.level": "read_committed"},
        lambda o: o.isolation_level,
        "read_committed",
    ),
    "TRUE": ({"includeHeaders": "TRUE"}, lambda o: o.include_headers, True),
    "at least so many tasks": ({"minPartitions": "7"}, lambda o: o.min_partitions, 7),
    "no more than": ({"maxOffsetsPerTrigger": "9"}, lambda o: o.max_offsets_per_trigger, 9),
    "no less than": ({"minOffsetsPerTrigger": " 9 "}, lambda o: o.min_offsets_per_trigger, 9),
    "filters, or not": ({"filterPushdown": "false"}, lambda o: o.filter_pushdown, False),
    "delay in minutes": ({"maxTriggerDelay": "2m"}, lambda o: o.max_trigger_delay_ms, 120_000),
    "delay in hours": ({"maxTriggerDelay": "1 h"}, lambda o: o.max_trigger_delay_ms, 3_600_000),
    "delay without unit": ({"maxTriggerDelay": "250"}, lambda o: o.max_trigger_delay_ms, 250),
    "offsets": (
        {"startingOffsets": '{"t":{"0":23,"1":-2}}'},
        lambda o: o.starting.each,
        {("t", 0): 23, ("t", 1): -2},
    ),
    "a time before offsets": (
        {"startingTimestamp": "17", "startingOffsets": "earliest"},
        lambda o: (o.starting.everywhere, o.starting.times),
        (17, True),
    ),
    "a time before times": (
        {"endingTimestamp": "17", "endingOffsetsByTimestamp": '{"t":{"0":1}}'},
        lambda o: (o.ending.option, o.ending.everywhere),
        ("endingTimestamp", 17),
    ),
    "times before offsets": (
        {"startingOffsetsByTimestamp": '{"t":{"0":1}}', "startingOffsets": "latest"},
        lambda o: (o.starting.each, o.starting.times),
        ({("t", 0): 1}, True),
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name: str) -> None:
    given, look, expected = ALLOWED[name]
    assert look(parse_options({**T, **given})) == expected


def test_assign_names_partitions_once_and_in_order() -> None:
    found = parse_options({**PATH, "assign": '{"b":[1,0,1],"a":[2]}'}).subscription.partitions
    assert found == (("a", 2), ("b", 0), ("b", 1))


REFUSED: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "two archives": (
        {"path": "s3://a/b", "archive": "s3://K:S@c/d"},
        ("option archive='s3://c/d': option path names an archive too",),
    ),
    "an archive and replicas": (
        {"path": "/a:/b", "archive": "s3://c/d"},
        ("option archive='s3://c/d': must stand beside one directory",),
    ),
    "no function of a file system": (
        {"path": "bucket/log", "archiveFilesystem": "mine.opened"},
        ("option archiveFilesystem='mine.opened': must be module:function",),
    ),
    "no path": ({"subscribe": "t"}, ("option path is missing", ".load(")),
    "several paths": ({**T, "paths": "[]"}, ("option path", "one store")),
    "a directory twice": ({**T, "path": "/a:/b:/a"}, ("option path", "the same directory")),
    "a relative directory": ({**T, "path": "a:/b"}, ("option path='a:/b'", "must be absolute")),
    "a witness that is a directory": ({**T, "path": "/a:/b", "witness": "/b"}, ("the same directory",)),
    "a witness of one directory": ({**T, "witness": "/w"}, ("option witness='/w'", "only a replicated")),
    "nothing to read": (PATH, ("subscribe, subscribePattern, assign",)),
    "two ways to say it": ({**T, "assign": '{"t":[0]}'}, ("subscribe and assign exclude each other",)),
    "no topic": ({**PATH, "subscribe": " , "}, ("option subscribe", "names no topic")),
    "a bad pattern": ({**PATH, "subscribePattern": "("}, ("option subscribePattern='('", "no regular")),
    "assign is no JSON": ({**PATH, "assign": "t:0"}, ("option assign='t:0'", '{"topic": [0, 1]}')),
    "assign of another form": ({**PATH, "assign": '{"t":{"0":1}}'}, ("option assign", "list is expected")),
    "assign of nothing": ({**PATH, "assign": "{}"}, ("option assign", "names no partition")),
    "assign of a bad number": ({**PATH, "assign": '{"t":[-1]}'}, ("option assign", "-1 is no partition")),
    "bad JSON": ({**T, "startingOffsets": "{"}, ("option startingOffsets='{'", '{"topic": {"0": 23')),
    "JSON of a list": ({**T, "startingOffsets": "[1]"}, ("option startingOffsets", "another form")),
    "JSON of a list inside": ({**T, "startingOffsets": '{"t":[1]}'}, ("option startingOffsets", "[1]")),
    "an offset that is text": ({**T, "endingOffsets": '{"t":{"0":"1"}}'}, ("option endingOffsets", "'1'")),
    "an offset of -3": (
        {**T, "startingOffsets": '{"t":{"0":-3}}'},
        ("option startingOffsets: -3", "-2 (ear"),
    ),
    "epochs in a list": (
        {**T, "startingOffsets": '{"t":{"0":1},"leader epochs":[1]}'},
        ("option startingOffsets", "'leader epochs' there is [1]"),
    ),
    "an epoch that is none": (
        {**T, "endingOffsets": '{"t":{"0":1},"leader epochs":{"t":{"0":"x"}}}'},
        ("option endingOffsets", "of 't', partition 0, there is 'x'"),
    ),
    "epochs beside times": (
        {**T, "startingOffsetsByTimestamp": '{"t":{"0":1},"leader epochs":{"t":{"0":1}}}'},
        ("startingOffsetsByTimestamp", "of 'leader epochs', partition t"),
    ),
    "a partition that is none": ({**T, "startingOffsets": '{"t":{"x":1}}'}, ("startingOffsets: 'x' is no",)),
    "a word that is none": ({**T, "startingOffsets": "first"}, ("option startingOffsets='first'",)),
    "a time that is none": ({**T, "startingTimestamp": "2020-01-01"}, ("startingTimestamp='2020-01-01'",)),
    "a time below 0": ({**T, "endingTimestamp": "-1"}, ("option endingTimestamp='-1'", "at least 0")),
    "times below 0": ({**T, "startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, ("at least 0", "t-0")),
    "a strategy": ({**T, "startingOffsetsByTimestampStrategy": "earliest"}, ("error, latest",)),
    "a flag": ({**T, "failOnDataLoss": "no"}, ("option failOnDataLoss='no'", "true, false")),
    "headers": ({**T, "includeHeaders": "1"}, ("option includeHeaders='1'", "true, false")),
    "filters": ({**T, "filterPushdown": "on"}, ("option filterPushdown='on'", "true, false")),
    "times of no JSON": ({**T, "endingOffsetsByTimestamp": "1"}, ("option endingOffsetsByTimestamp='1'",)),
    "an isolation": ({**T, "kafka.isolation.level": "none"}, ("kafka.isolation.level", "read_committed")),
    "0 partitions": ({**T, "minPartitions": "0"}, ("option minPartitions='0'", "at least 1")),
    "half a record": ({**T, "maxRecordsPerPartition": "1.5"}, ("option maxRecordsPerPartition='1.5'",)),
    "too large": ({**T, "maxOffsetsPerTrigger": str(1 << 63)}, ("option maxOffsetsPerTrigger",)),
    "a delay": ({**T, "maxTriggerDelay": "soon"}, ("option maxTriggerDelay='soon'", "15m")),
    "min above max": (
        {**T, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
        ("minOffsetsPerTrigger=5", "maxOffsetsPerTrigger=4"),
    ),
    "a broker": ({**T, "kafka.bootstrap.servers": "h:1"}, ("kafka.bootstrap.servers", "no broker", "leave")),
    "a group": ({**T, "kafka.group.id": "g"}, ("option kafka.group.id", "no broker")),
    "a group's prefix": ({**T, "groupIdPrefix": "g"}, ("option groupidprefix", "no broker")),
    "a poll": ({**T, "kafkaConsumer.pollTimeoutMs": "1"}, ("option kafkaconsumer.polltimeoutms",)),
    "a fetch": ({**T, "fetchOffset.numRetries": "1"}, ("option fetchoffset.numretries",)),
    "a slip": ({**T, "startingOffset": "earliest"}, ("startingoffset is unknown", "mean startingOffsets?")),
    "something else": ({**T, "mergeSchema": "true"}, ("option mergeschema is unknown", "allowed are path,")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    given, said = REFUSED[name]
    with pytest.raises(ConfigError) as raised:
        parse_options(given)
    assert [part for part in said if part not in str(raised.value)] == [], str(raised.value)


WRONG_TYPES: dict[str, tuple[Any, Any, str]] = {
    "None": ("path", None, "option path=None: must be a str, not NoneType"),
    "bytes": ("path", b"/s", "option path=b'/s': must be a str, not bytes"),
    "an int": ("path", 5, "option path=5: must be a str, not int"),
    "a list": ("subscribe", ["t"], "option subscribe=['t']: must be a str, not list"),
    "a number": ("minPartitions", 5, "option minPartitions=5: must be a str, not int"),
    "a truth": ("failOnDataLoss", True, "option failOnDataLoss=True: must be a str, not bool"),
    "a name that is None": (None, "x", "option None: its name must be a str, not NoneType"),
    "a name of bytes": (b"path", "x", "option b'path': its name must be a str, not bytes"),
    "a NUL": ("path", "/a\0b", "option path='/a\\x00b': must be the path of a directory"),
    "a surrogate": ("path", "/\ud800", "option path='/\\ud800': must be the path of a directory"),
    "nothing": ("path", "", "option path is missing"),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_what_is_no_text_or_no_path(name: str) -> None:
    option, value, said = WRONG_TYPES[name]
    for parse, more in ((parse_options, T), (partial(parse_sink_options, streaming=False), PATH)):
        with pytest.raises(ConfigError) as raised:
            parse({**more, option: value})  # type: ignore[dict-item, operator]
        assert said in str(raised.value)


ONLY_ELSEWHERE: dict[str, tuple[dict[str, str], bool, str]] = {
    "a batch from latest": ({"startingOffsets": "latest"}, False, "option startingOffsets=latest"),
    "a batch from -1": ({"startingOffsets": '{"t":{"0":-1}}'}, False, "option startingOffsets=-1 (latest)"),
    "a batch to earliest": ({"endingOffsets": "earliest"}, False, "option endingOffsets=earliest"),
    "a batch to -2": ({"endingOffsets": '{"t":{"0":-2}}'}, False, "option endingOffsets=-2 (earliest)"),
    "a stream with an end": ({"endingOffsets": "latest"}, True, "option endingOffsets: a stream has no end"),
    "a stream with a last time": ({"endingTimestamp": "1"}, True, "option endingTimestamp: a stream"),
}


@pytest.mark.parametrize("name", ONLY_ELSEWHERE)
def test_refused_by_kind_of_query(name: str) -> None:
    given, streaming, said = ONLY_ELSEWHERE[name]
    options = parse_options({**T, **given})
    with pytest.raises(ConfigError, match=said.replace("(", r"\(").replace(")", r"\)")):
        _ = options.check_stream() if streaming else (options.begin(streaming=False), options.end())


# --- against a store ------------------------------------------------------------------------


@pytest.fixture
def root(store_dir: Path) -> Path:
    """Topic "t" of two partitions: offsets 10 to 20 and 0 to 5, a second apart; two other topics."""
    with segstore.open(store_dir, clock=Clock()) as store:
        for topic in ("t", "u", "__consumer_offsets"):
            store._create_topic(topic, 2 if topic == "t" else 1, {})
        for partition, n in ((0, 20), (1, 5)):
            stamps = [START_MS + 1000 * i for i in range(n)]
            for i in range(n):
                store.partition("t", partition).append(b"v", timestamp=stamps[i])
        store.partition("t", 0).delete_records(10)
    return store_dir


def options_of(root: Path, **given: str) -> SourceOptions:
    kind = {} if given.keys() & {"subscribePattern", "assign"} else {"subscribe": "t"}
    return parse_options({"path": str(root), **kind, **given})


def begins(root: Path, **given: str) -> list[int]:
    with Lookup(options_of(root, **given)) as lookup:
        found = lookup.resolve(lookup.options.begin(streaming=True), lookup.partitions(), begin=True)
    return [found[each] for each in sorted(found)]


BEGIN: dict[str, tuple[dict[str, str], list[int]]] = {
    "latest": ({}, [20, 5]),
    "earliest": ({"startingOffsets": "earliest"}, [10, 0]),
    "each": ({"startingOffsets": '{"t":{"0":12,"1":-1}}'}, [12, 5]),
    "with leader epochs": (
        {"startingOffsets": '{"t":{"0":12,"1":4},"leader epochs":{"t":{"0":0,"1":-1}}}'},
        [12, 4],
    ),
    "both words": ({"startingOffsets": '{"t":{"0":-2,"1":-1}}'}, [10, 5]),
    "the very end": ({"startingOffsets": '{"t":{"0":20,"1":5}}'}, [20, 5]),
    "a time": ({"startingTimestamp": str(START_MS + 3000)}, [10, 3]),
    "a time between": ({"startingTimestamp": str(START_MS + 3001)}, [10, 4]),
    "times": ({"startingOffsetsByTimestamp": json.dumps({"t": {"0": START_MS + 15_000, "1": 0}})}, [15, 0]),
    "a late time, latest": (
        {"startingTimestamp": str(START_MS + 9000), "startingOffsetsByTimestampStrategy": "latest"},
        [10, 5],
    ),
    "gone, allowed": ({"startingOffsets": '{"t":{"0":3,"1":9}}', "failOnDataLoss": "false"}, [10, 5]),
}


@pytest.mark.parametrize("name", BEGIN)
def test_where_it_begins(name: str, root: Path) -> None:
    given, expected = BEGIN[name]
    assert begins(root, **given) == expected


END: dict[str, tuple[dict[str, str], list[int]]] = {
    "latest": ({}, [20, 5]),
    "each": ({"endingOffsets": '{"t":{"0":12,"1":-1}}'}, [12, 5]),
    "a time": ({"endingTimestamp": str(START_MS + 3000)}, [10, 3]),
    "a late time": ({"endingTimestamp": str(START_MS + 9000)}, [10, 5]),
    "times": ({"endingOffsetsByTimestamp": json.dumps({"t": {"0": START_MS + 15_000, "1": 0}})}, [15, 0]),
    "a time before times and offsets": (
        {
            "endingTimestamp": str(START_MS + 12_000),
            "endingOffsetsByTimestamp": json.dumps({"t": {"0": 0, "1": 0}}),
            "endingOffsets": "latest",
        },
        [12, 5],
    ),
    "not there yet, allowed": ({"endingOffsets": '{"t":{"0":99,"1":2}}', "failOnDataLoss": "false"}, [20, 2]),
}


@pytest.mark.parametrize("name", END)
def test_where_it_ends(name: str, root: Path) -> None:
    given, expected = END[name]
    with Lookup(options_of(root, **given)) as lookup:
        found = lookup.resolve(lookup.options.end(), lookup.partitions(), begin=False)
    assert [found[each] for each in sorted(found)] == expected


NOWHERE: dict[str, tuple[dict[str, str], type[Exception], tuple[str, ...]]] = {
    "a late time": (
        {"startingTimestamp": str(START_MS + 9000)},
        ConfigError,
        ("option startingTimestamp", "t-1", "startingOffsetsByTimestampStrategy=latest"),
    ),
    "gone": (
        {"startingOffsets": '{"t":{"0":3,"1":-2}}'},
        DataLossError,
        ("option startingOffsets: offset 3 of t-0", "10 to 20", "failOnDataLoss=false"),
    ),
    "not there yet": (
        {"startingOffsets": '{"t":{"0":10,"1":6}}'},
        DataLossError,
        ("option startingOffsets: offset 6 of t-1", "0 to 5"),
    ),
    "one missing": (
        {"startingOffsets": '{"t":{"0":10}}'},
        ConfigError,
        ("option startingOffsets must name", "missing: t-1"),
    ),
    "one too many": (
        {"startingOffsets": '{"t":{"0":10,"1":0,"2":0},"u":{"0":0}}'},
        ConfigError,
        ("not read: t-2, u-0",),
    ),
    "no such topic": ({"subscribe": "t,x"}, ConfigError, ("option subscribe: no topic 'x'", "t, u", "path=")),
    "no such partition": ({"assign": '{"t":[0,7]}'}, ConfigError, ("option assign", "no partition 7")),
}


@pytest.mark.parametrize("name", NOWHERE)
def test_where_it_can_not_begin(name: str, root: Path) -> None:
    given, kind, said = NOWHERE[name]
    with pytest.raises(kind) as raised:
        begins(root, **given)
    assert [part for part in said if part not in str(raised.value)] == [], str(raised.value)
    error = raised.value
    assert error.__cause__ is None  # Spark prints the whole traceback
    assert error.__context__ is None or error.__suppress_context__


SUBSCRIBED: dict[str, tuple[dict[str, str], list[str]]] = {
    "a topic": ({"subscribe": "u"}, ["u-0"]),
    "topics": ({"subscribe": "u,t"}, ["t-0", "t-1", "u-0"]),
    "a pattern, internal topics left out": ({"subscribePattern": ".*"}, ["t-0", "t-1", "u-0"]),
    "a pattern is of the whole name": ({"subscribePattern": "[s-t]"}, ["t-0", "t-1"]),
    "a pattern of none": ({"subscribePattern": "x"}, []),
    "an internal topic by name": ({"subscribe": "__consumer_offsets"}, ["__consumer_offsets-0"]),
    "partitions": ({"assign": '{"t":[1],"u":[0]}'}, ["t-1", "u-0"]),
}


@pytest.mark.parametrize("name", SUBSCRIBED)
def test_subscribed(name: str, root: Path) -> None:
    given, expected = SUBSCRIBED[name]
    with Lookup(options_of(root, **given)) as lookup:
        assert [f"{topic}-{partition}" for topic, partition in lookup.partitions()] == expected


@pytest.mark.parametrize("there", ["nothing", "a file"])
def test_path_that_is_no_store(there: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if there == "a file":
        path.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"option path='.*x'.*give the directory of a store"):
        Lookup(parse_options({"path": str(path), "subscribe": "t"}))


def test_offsets_of_a_checkpoint_are_sorted_and_come_back() -> None:
    offsets = {TopicPartition(t, p): i for i, (t, p) in enumerate([("b", 10), ("b", 9), ("a", 2)])}
    held = to_json(offsets)
    assert json.dumps(held) == '{"a": {"2": 2}, "b": {"9": 1, "10": 0}}'
    assert from_json(held) == offsets
    for bad in ({"t": 1}, {"t": {"x": 1}}, {"t": {"0": None}}):
        with pytest.raises(CorruptCheckpointError):
            from_json(bad)


def test_every_option_has_a_case() -> None:
    """That it is taken, and that a bad value of it is refused by its name."""
    known = {name.lower() for name in KNOWN}
    tables: list[dict[str, Any]] = [ALLOWED, BEGIN, END, SUBSCRIBED]
    assert known <= {name.lower() for table in tables for case in table.values() for name in case[0]}
    assert known <= {name.lower() for given, _ in REFUSED.values() for name in given}
