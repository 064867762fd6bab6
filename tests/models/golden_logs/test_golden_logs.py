"""Promise: the same seed leaves the same logs, byte for byte, and the same answers, in every version whose
formats are the same.

A change that is meant to write other bytes makes the hashes anew: `make golden-logs`. `python -m golden_logs
--dump` shows what has changed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from segstore.records import CODECS, scan
from segstore.records.control import CONTROL_FLAG
from segstore.records.header import APPEND_TIME_FLAG, CODEC_MASK, TRANSACTIONAL_FLAG

from .runs import HASHES, KINDS, Run, run

pytestmark = pytest.mark.kind("golden logs")

CHUNK = 5
FIRST = "0" * 20 + ".log"
WANTED: dict[str, list[str]] = json.loads(HASHES.read_text(encoding="utf-8"))
CHUNKS = [(kind, first) for kind, (_, seeds) in KINDS.items() for first in range(0, seeds, CHUNK)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Faults are logged, thousands of them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("kind", "first"), CHUNKS)
def test_logs_have_their_hashes(kind: str, first: int) -> None:
    for seed in range(first, first + CHUNK):
        found = run(kind, seed).hash()
        assert found == WANTED[kind][seed], f"{kind} {seed}: python -m golden_logs --dump shows the run"


def test_each_run_has_a_hash() -> None:
    assert {kind: len(hashes) for kind, hashes in WANTED.items()} == {
        kind: seeds for kind, (_, seeds) in KINDS.items()
    }
    assert all(len(set(hashes)) == len(hashes) for hashes in WANTED.values())


@pytest.mark.parametrize("kind", KINDS)
def test_runs_have_every_form_of_batch(kind: str) -> None:
    """Codecs, stamps of the log, producers, transactions, markers, epochs and rolls: else a hash says little
    of them.
    """
    missing = {*CODECS, "stamped", "producer", "transaction", "marker", "rolled", "many"}
    missing |= {"epoch"} if kind == "appends" else set()
    for seed in range(20):
        for name, data in run(kind, seed).files.items():
            if name.endswith(".log") or name == "follower":
                missing.difference_update(_forms(data))
                missing -= {"rolled"} if name.endswith(".log") and not name.endswith("/" + FIRST) else set()
        if not missing:
            break
    assert missing == set()


def _forms(data: bytes) -> Iterator[str]:
    for batch in scan(data)[0]:
        attributes = int(batch["attributes"])
        yield CODECS[attributes & CODEC_MASK]
        forms = {
            "stamped": attributes & APPEND_TIME_FLAG,
            "producer": batch["producer_id"] >= 0,
            "transaction": attributes & TRANSACTIONAL_FLAG,
            "marker": attributes & CONTROL_FLAG,
            "epoch": batch["leader_epoch"] > 0,
            "many": batch["count"] > 1,
        }
        yield from (name for name, there in forms.items() if there)


CHANGED = {
    "a byte": Run({"t-0/0.log": b"abd"}, ["1"]),
    "a name": Run({"t-0/1.log": b"abc"}, ["1"]),
    "one more file": Run({"t-0/0.log": b"abc", "t-0/0.index": b""}, ["1"]),
    "the border of two files": Run({"t-0/0.log": b"ab", "t-0/0.logc": b""}, ["1"]),
    "an answer": Run({"t-0/0.log": b"abc"}, ["2"]),
    "one answer less": Run({"t-0/0.log": b"abc"}, []),
}


def test_a_hash_changes_with_each_of_these() -> None:
    before = Run({"t-0/0.log": b"abc"}, ["1"]).hash()
    assert {name: run.hash() != before for name, run in CHANGED.items()} == dict.fromkeys(CHANGED, True)
