"""Distributes the tests to the processes of `make test`, the workers of pytest-xdist. Writes nothing.

The tests of a file stay in one process and in order. So do all tests that share Spark's session, which has
one JVM, and all that start a Kafka broker. The longest files start first, so that the processes end at about
the same time. There is one process more than there are cores, since `make test` spends a third of its time
waiting, for JVMs, killed processes and intervals that must pass.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
MOST = 4  # processes; a JVM and a store's threads need a core of their own
MORE = 1  # how many processes more than there are cores, up to MOST

# A file whose text has one of these marks belongs to the group.
MARKS = {"spark": ("SparkSession",), "kafka": ('judge("Kafka\'s broker")',)}

# The groups and files that take longest (10 s to minutes of a core), the longest first, as measured by
# `--cpu-times`.
LONGEST = (
    "spark",
    "models/replicas/test_large_spaces",
    "models/replicated_simulation/test_replicated_simulation",
    "spark/test_demo",
    "kafka",
    "models/simulation/test_simulation",
    "bench/test_notebook",
    "bench/test_peers",
    "crash/test_kill",
    "crash/test_staging_kill",
    "hostile/test_small_files",
    "hostile/test_ends_damaged",
    "hostile/test_planted_files",
    "hostile/test_fuzz",
    "bench/test_studies",
    "processes/test_reentry",
    "processes/test_shared_storm",
    "bench/test_soak",
    "models/test_cleaner_model",
    "processes/test_interrupts_twice",
    "bench/test_zero_copy_cli",
    "crash/test_crash_loop",
    "unit/cleaner/test_swap",
    "crash/test_each_call_store",
    "crash/test_each_call_log",
    "crash/test_each_call_transactions",
    "crash/test_each_call_opening",
    "demo/test_demo",
    "processes/test_tiers",
    "unit/producers/test_state_manager",
    "unit/cleaner/test_sweeper",
    "crash/test_compaction_swap",
    "processes/test_opening_together",
    "processes/test_interrupts_beginning",
    "unit/filetree/test_tree",
    "bench/test_ending",
    "unit/files/test_modes",
    "bench/test_zero_copy",
    "crash/test_transactions_kill",
    "models/test_groups_model",
    "unit/transfer/test_syscalls",
    "unit/transfer/test_sinks",
    "crash/test_each_call_importing",
    "crash/test_failing_disks",
    "models/simulation/test_mutations",
    "unit/test_layers",
)


@cache
def group(file: str) -> str:
    """Return the group of a file, whose tests run in one process; `file` is the part of a node id before
    `::`.
    """
    text = (ROOT / file).read_text(encoding="utf-8")
    return next((name for name, marks in MARKS.items() if any(mark in text for mark in marks)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return min(len(os.sched_getaffinity(0)) + MORE, MOST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid.partition("::")[0])

    config.option.loadscopereorder = False  # keep the order of `pytest_collection_modifyitems`
    return Groups(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Replace surrogates in a report. One that names a path which is not UTF-8 would end its worker, because
    execnet does not send surrogates.
    """
    return _sendable((yield))


def _sendable(data: Any) -> Any:
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(data, dict):
        return {_sendable(key): _sendable(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(map(_sendable, data))
    return data


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.nodeid.partition("::")[0]))


def _place(file: str) -> int:
    name = group(file).removeprefix("tests/").removesuffix(".py")
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)
