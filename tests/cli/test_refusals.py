"""cli.places.refusals: errors after which librdkafka sends records again are told once they last."""

from __future__ import annotations

import logging

import pytest

from segstore.cli.places import refusals
from segstore.cli.places.refusals import Refusals

LINE = (
    "MSGSET [rdkafka#producer-1] [thrd:h:1/1]: h:1/1: big [0]: MessageSet with 990 message(s) (MsgId 1981, "
    "BaseSeq 1980) encountered error: %s (actions %s)"
)
FULL = "Broker: Disk error when trying to access log file on disk"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(refusals, "LASTS", 0.0)
    return []


@pytest.mark.parametrize(
    ("error", "actions", "expected"),
    [
        pytest.param(
            FULL,
            "Refresh,Retry,MsgNotPersisted",
            ["big-0: Disk error when trying to access log file on disk"],
            id="sent again",
        ),
        pytest.param(FULL, "Permanent,MsgNotPersisted", [], id="for good: the record's own error says it"),
    ],
)
def test_what_is_sent_again_is_told(told: list[str], error: str, actions: str, expected: list[str]) -> None:
    made = Refusals(told.append)
    made.logger.debug("%s", LINE % (error, actions))
    made.logger.debug("PRODUCE big [0]: Produce MessageSet with 990 message(s)")
    assert told == expected


def test_a_store_that_was_demoted_gives_no_producer_id(told: list[str]) -> None:
    line = "[thrd:main]: Failed to acquire idempotence PID from broker h:1/1: Broker: %s: retrying"
    made = Refusals(told.append)
    made.logger.warning("%s", line % "Not coordinator")
    made.logger.warning("%s", line % "Coordinator load in progress")
    assert told == [
        "no producer id: Not coordinator; a store that was demoted says so: the promoted one takes records",
        "no producer id: Coordinator load in progress",
    ]


def test_once_until_a_record_is_acknowledged(told: list[str]) -> None:
    made = Refusals(told.append)
    for _ in range(3):
        made.logger.debug("%s", LINE % (FULL, "Refresh,Retry"))
    assert len(told) == 1
    made.acknowledged()
    made.logger.debug("%s", LINE % (FULL, "Refresh,Retry"))
    assert len(told) == 2


def test_what_passes_soon_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(refusals, "LASTS", 1e9)
    made = Refusals(told.append)
    made.logger.log(logging.DEBUG, "%s", LINE % ("Broker: Not leader for partition", "Refresh,Retry"))
    assert told == []
