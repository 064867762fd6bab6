"""What of the output of Kafka's tools is the same for two servers that do the same: without addresses, ids,
times, and the words of errors behind their kinds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

View = Callable[[str], Any]
_LEFT_OUT = re.compile(r"\tat |\t\.\.\. |\s*$|SLF4J: ")
_NAMELESS = re.compile(r"\b(console-consumer-N|perf-consumer-N|test-group-MS|ID)\b")
_SAME = (
    (r"\b[\w-]{8}-[\w-]{4}-[\w-]{4}-[\w-]{4}-[\w-]{12}\b", "UUID"),
    (r"\b[\w-]{22}(?![\w.-])", "ID"),
    (r"\b1[6-9]\d{11}\b", "MS"),
    (r"\b20\d\d[-/]\d\d[-/]\d\d[ T:]\d\d:\d\d:\d\d([.,:]\d+)?", "DATE"),
    (r"(console-consumer|perf-consumer)-\d+", r"\1-N"),
    (r"(consumer-[a-z0-9]+)-\d+", r"\1-N"),
    (r"(errors\.\w+): .*", r"\1"),
    (r"  +", " "),
    (r"(Error while executing (?:topic|client metrics) command :) .*", r"\1"),
)


def plain(text: str) -> str:
    """Return the lines of an output but for those of stacks."""
    lines = "\n".join(line.rstrip() for line in text.splitlines() if not _LEFT_OUT.match(line))
    for pattern, word in _SAME:
        lines = re.sub(pattern, word, lines)
    return lines


def found(pattern: str) -> View:
    """Return a view of all matches of a regular expression."""
    return lambda text: re.findall(pattern, text, re.MULTILINE)


def without(pattern: str) -> View:
    """Return a view of the output without the matches of a regular expression."""
    return lambda text: re.sub(pattern, "", plain(text), flags=re.MULTILINE)


def in_any_order(text: str) -> list[str]:
    """Return the lines in order of what they say, without groups of consumers that have no name of ours."""
    return sorted(line for line in plain(text).splitlines() if not _NAMELESS.search(line))


def latest(text: str) -> dict[str, str]:
    """Return the last value of each key in a dump of an internal topic. Epochs of groups are counted
    otherwise here (KIP-1263), producers' ids before the present one are noted otherwise.
    """
    values: dict[str, str] = {}
    for key, value in re.findall(r" key: (\{.*?\}\}) payload: (.*)", plain(text)):
        if _NAMELESS.search(key.partition("memberId")[0]):
            continue
        told = re.sub(r',?"\w*([eE]poch|[vV]ersion|Timestamp|Hash|previousProducerId)":(-?\d+|MS)', "", value)
        values[key] = re.sub(r'"assignmentEpochs":\[\d+\]', "", told).replace("{,", "{")
    return {key: value for key, value in values.items() if value != "<DELETE>"}


def directories(text: str) -> Any:
    """Return what a description of log directories says of partitions of topics that are not internal."""
    told = json.loads(text[text.index("{") :])
    return [
        [broker["broker"], one["error"], sorted(map(str, filter(_is_ordinary, one["partitions"])))]
        for broker in told["brokers"]
        for one in broker["logDirs"]
    ]


def _is_ordinary(partition: dict[str, Any]) -> bool:
    partition.pop("size")  # batches are the client's, and differ
    return not partition["partition"].startswith("__")


def settings(text: str) -> dict[str, str]:
    """Return the value of each setting and where it comes from."""
    return dict(re.findall(r"^ ([\w.]+)=(.*)", plain(text), re.MULTILINE))


def apis(text: str) -> dict[str, str]:
    """Return the versions of each API that are told, by its key."""
    return dict(re.findall(r"\t\w+\((\d+)\): (.+?),?$", text, re.MULTILINE))
