"""The network part of the demo: a store is served, and a program without segstore produces and reads records
by librdkafka.

On disk: a store with one topic. Threads: one, and the server's threads; the program is a child process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import segstore
from segstore.demo.screen import Screen
from segstore.errors import MissingPackageError, StorageError

TOPIC, PARTITIONS = "postcards", 2
_PROGRAM = os.path.join(os.path.dirname(__file__), "wire_program.py")
_LONGEST = 180.0  # longest time of the program on a busy machine, in seconds


def serving(screen: Screen, path: str, records: int) -> None:
    """Serve a new store at `path`, and run the program, which sends and reads `records` records. Raises
    StorageError if a record is missing or duplicated, or if the store is damaged. Raises MissingPackageError
    if confluent-kafka is not installed.
    """
    if importlib.util.find_spec("confluent_kafka") is None:
        raise MissingPackageError.of("the demo over the network", "confluent-kafka")
    with screen.step(
        "Network", "segstore serve, and a program of confluent-kafka that knows only its address"
    ):
        with segstore.open(path) as store:
            store.create_topic(TOPIC, PARTITIONS)
            with segstore.serve(store, port=0, group_initial_rebalance_delay_ms=0) as server:
                screen.say(f"the store listens on {server.bootstrap_servers}")
                screen.say(f"it gets {records:,} records, and a group reads them: some seconds ...")
                counts = _run(server.bootstrap_servers, records)
            _prove(screen, store, counts, records)
        if findings := segstore.check(path):
            raise StorageError(f"{path} is not sound: {findings[0]}")
        screen.good("the store is sound")


def _run(bootstrap_servers: str, records: int) -> dict[str, int]:
    """Run `_PROGRAM` against the server, and return the counts that it prints."""
    command = [sys.executable, _PROGRAM, bootstrap_servers, TOPIC, str(records)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST)
    if done.returncode:
        raise StorageError(f"the program ended with {done.returncode}: {done.stderr[-500:]}")
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def _prove(screen: Screen, store: segstore.Store, counts: dict[str, int], records: int) -> None:
    """Check that the logs have each record exactly once, and that the program has read all records. Raises
    StorageError.
    """
    found = [record.value for number in range(PARTITIONS) for record in store.partition(TOPIC, number)]
    if counts != {"sent": records, "received": records} or len(found) != records or len({*found}) != records:
        raise StorageError(
            f"of {records:,} records {counts['sent']:,} were acknowledged and {counts['received']:,} "
            f"received; the log has {len(found):,}, {len({*found}):,} of them different"
        )
    screen.good(f"librdkafka has sent {records:,} records, and a group of its has read them all")
    screen.good(f"the log has all {records:,}, each once; the same process reads them without a network")
