"""`segstore quotas`: what it shows, what it changes, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli import json_lines, ok, run

import segstore
from segstore.coordinator.quotas import DEFAULT, quotas

PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"


@pytest.fixture
def store(store_dir: Path) -> Path:
    ok("create", "t", "-s", store_dir)
    return store_dir


def test_rates_are_set_shown_and_taken_back(store: Path) -> None:
    assert "no limits" in ok("quotas", "-s", store).stderr
    shown = ok("quotas", "app", "-s", store, "-c", f"{PRODUCER}=1048576", "-c", f"{CONSUMER}=5").stdout
    assert "1,048,576" in shown
    ok("quotas", "--default", "-s", store, "-c", f"{CONSUMER}=7")
    assert json_lines(ok("quotas", "-s", store, "--json")) == [
        {"client_id": DEFAULT, CONSUMER: 7},
        {"client_id": "app", PRODUCER: 1_048_576, CONSUMER: 5},
    ]
    assert json_lines(ok("quotas", "app", "-s", store, "--json", "-d", CONSUMER)) == [
        {"client_id": "app", PRODUCER: 1_048_576}
    ]
    with segstore.open(store) as opened:
        assert quotas(opened).effective("app") == {PRODUCER: 1_048_576, CONSUMER: 7}
        assert json_lines(ok("quotas", "app", "-s", store, "--json")) == [
            {"client_id": "app", PRODUCER: 1_048_576}
        ]


def test_users_have_rates(store: Path) -> None:
    ok("quotas", "--user", "alice", "-s", store, "-c", f"{PRODUCER}=5")
    ok("quotas", "app", "--user", "alice", "-s", store, "-c", f"{PRODUCER}=6")
    ok("quotas", "--default", "--user", DEFAULT, "-s", store, "-c", f"{PRODUCER}=7")
    assert json_lines(ok("quotas", "-s", store, "--json")) == [
        {"client_id": DEFAULT, "user": DEFAULT, PRODUCER: 7},
        {"user": "alice", PRODUCER: 5},
        {"client_id": "app", "user": "alice", PRODUCER: 6},
    ]
    assert "alice" in ok("quotas", "-s", store).stdout
    assert json_lines(ok("quotas", "--user", "alice", "-s", store, "--json")) == [
        {"user": "alice", PRODUCER: 5}
    ]
    with segstore.open(store) as opened:
        assert quotas(opened).effective("app", "alice") == {PRODUCER: 6}
        assert quotas(opened).effective("app", "bob") == {PRODUCER: 7}
        assert quotas(opened).effective("app") == {}


REFUSED: dict[str, tuple[list[str], int, str]] = {
    "whose": (["-c", f"{PRODUCER}=1"], 2, "Whose?"),
    "two clients": (["app", "--default"], 2, "not both"),
    "set and deleted": (["app", "-c", f"{PRODUCER}=1", "-d", PRODUCER], 2, "both set and deleted"),
    "a user without a name": (["--user", "", "-c", f"{PRODUCER}=1"], 2, "must have a name"),
    "no such rate": (["app", "-c", "request_percentage=1"], 1, "no setting 'request_percentage'"),
    "no rate at all": (["app", "-c", f"{PRODUCER}=0"], 1, f"{PRODUCER}='0': must be an integer from 1"),
}


@pytest.mark.parametrize(("arguments", "status", "told"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_changes_nothing(store: Path, arguments: list[str], status: int, told: str) -> None:
    result = run("quotas", "-s", store, *arguments)
    assert result.exit_code == status
    assert told in " ".join(result.stderr.split())
    assert not (store / ".segstore" / "quotas.json").exists()


def test_a_store_in_use_is_left_to_its_writer(store: Path) -> None:
    with segstore.open(store):
        result = run("quotas", "app", "-s", store, "-c", f"{PRODUCER}=1")
    assert result.exit_code == 1
    assert "do this there, or stop that process first" in result.stderr


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert run("quotas", "app", "-s", tmp_path / "x", "-c", f"{PRODUCER}=1").exit_code == 1
    assert not (tmp_path / "x").exists()
