"""Promise: whenever a process is killed in staging, sealing, adoption or recovery, sealing the same id again
leaves every row in the log once, in all partitions or none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from staging import (
    PARTS,
    SMALL,
    TINY_SEGMENTS,
    KillingUnsynced,
    Unsynced,
    begin,
    contents,
    inbox,
    killed_adoptions,
    left_in_inbox,
    rows,
    sealed_only,
    stage,
    unsynced,
)
from stores import in_child, killed_at_each_call, logs
from waiting import PATIENCE

import segstore
from segstore import names
from segstore.files import Files
from segstore.storage.inbox.adopted_ids import read_adoption
from segstore.storage.staging import seal

pytestmark = pytest.mark.kind("long kills")

N = 16
SETTINGS = {
    "copied": ({}, 5, {}),
    "copied over rolls": (SMALL, 5, {}),
    "linked behind records, moved": (SMALL, 5, TINY_SEGMENTS),
    "linked into an empty log": (SMALL, 0, TINY_SEGMENTS),
    "gathered": (SMALL, 5, {"inbox.segment.bytes": 1200}),
}


def sealed_state(tmp_path: Path, case: str) -> Path:
    """A store where a sealed manifest waits. Moved: a record came after the stager had looked, so that
    adoption has to write into a staged file. Gathered: in two pieces, which are too small for segments.
    """
    config, before, _ = SETTINGS[case]
    moved = "moved" in case
    state = begin(tmp_path / "state", config, before - moved)
    cuts = (0, N // 2, N) if case == "gathered" else (0, N)
    messages = [stage(state, "a", end, first=first) for first, end in itertools.pairwise(cuts)]
    with segstore.open(state, files=Unsynced()) as store:
        for part in PARTS if moved else ():
            store.partition(*part).append(rows("before", before)[-1])
    sealed_only(state, "one", messages)
    return state


def adopt(files: Files, path: Path, options: dict) -> None:
    segstore.open(path, files=files, config=options).close()


def check_whole(path: Path, before: int, where: str, again: bool = True) -> None:
    """The manifest is there as a whole or not at all; sealed again with the same id, once."""
    with segstore.open(path, "r") as reader:
        seen = [log[before:] for log in contents(reader)]
        assert seen in ([[]] * len(PARTS), [rows("a", N)] * len(PARTS)), where
    with segstore.open(path, files=Unsynced()) as store:
        if again:
            seal(path, "one", [stage(path, "a", N, files=Unsynced())], timeout=PATIENCE, files=Unsynced())
        assert contents(store) == [rows("before", before) + rows("a", N)] * len(PARTS), where
        store.partition("t").append(b"later")
    assert segstore.check(path) == [], where


@pytest.mark.parametrize("case", SETTINGS)
def test_killed_at_each_call_of_adoption(tmp_path: Path, case: str) -> None:
    _, before, options = SETTINGS[case]
    state = sealed_state(tmp_path, case)
    for nth, path in killed_adoptions(state, tmp_path, lambda files, p: adopt(files, p, options)):
        check_whole(path, before, f"{case}, call {nth}")
        assert left_in_inbox(path) == [], f"call {nth}"


def test_killed_at_each_call_while_joined_segments_are_not_synced(tmp_path: Path) -> None:
    """The files are staged where they are adopted: copies of them would be synced at once."""
    state, noted = begin(tmp_path / "state", {**SMALL, "segment.bytes": 3000}, 5), 0

    def run(files: Files, path: Path) -> None:
        cuts = itertools.pairwise(range(0, N + 1, N // 4))
        sealed_only(path, "one", [stage(path, "a", end, first=first) for first, end in cuts])
        adopt(files, path, {"inbox.segment.bytes": 1000})

    for nth, path in killed_adoptions(state, tmp_path, run, KillingUnsynced):
        noted += any(name.endswith(".joined") for name in inbox(path))
        waits = read_adoption(Files(), str(path / ".segstore" / "adopted"), "one") is None
        check_whole(path, 5, f"call {nth}", again=waits and nth % 4 == 0)
        assert left_in_inbox(path) == [], f"call {nth}"
    assert noted > 2


def test_killed_at_each_call_of_staging(tmp_path: Path) -> None:
    state = begin(tmp_path / "state")
    for nth, path in killed_at_each_call(
        state, tmp_path, lambda files, p: stage(p, "a", N, files=unsynced(files))
    ):
        check_whole(path, 0, f"call {nth}")


def test_killed_at_each_call_of_sealing(tmp_path: Path) -> None:
    """The sealer is the adopter too, and closes the store that it has opened."""
    state = begin(tmp_path / "state")
    message = stage(state, "a", N)
    for nth, path in killed_at_each_call(
        state, tmp_path, lambda files, p: seal(p, "one", [message], files=unsynced(files))
    ):
        check_whole(path, 0, f"call {nth}")


def intents_of(tmp_path: Path, case: str) -> Iterator[Path]:
    """States that a kill left with an intent, one after the other in one place."""
    options = SETTINGS[case][2]
    state = sealed_state(tmp_path, case)
    for _, path in killed_adoptions(state, tmp_path, lambda files, p: adopt(files, p, options)):
        if any(name.endswith(".intent") for name in inbox(path)):
            yield path


@pytest.mark.parametrize("case", ["linked behind records, moved"])
def test_killed_again_at_each_call_of_recovery(tmp_path: Path, case: str) -> None:
    """From where both partitions have a part of what is undone."""
    _, before, options = SETTINGS[case]
    state = next(
        path
        for path in intents_of(tmp_path, case)
        if all(len(logs(path, names.partition_dir(*part))) > 1 for part in PARTS)
    )
    work = tmp_path / "again"
    work.mkdir()
    for nth, path in killed_adoptions(state, work, lambda f, p: adopt(f, p, options)):
        check_whole(path, before, f"call {nth}", again=False)


def test_every_intent_is_told_by_check_and_gone_after_an_open(tmp_path: Path) -> None:
    looked = 0
    for state in itertools.islice(intents_of(tmp_path, "copied"), 0, None, 4):
        assert any("adoption of 'one' was begun" in finding.message for finding in segstore.check(state))
        with segstore.open(state) as store:
            assert contents(store) == [rows("before", 5) + rows("a", N)] * len(PARTS)
        assert segstore.check(state) == []
        looked += 1
    assert looked > 2


@pytest.mark.parametrize("victim", ["writer", "sealer"])
def test_one_of_two_processes_is_killed(store_dir: Path, victim: str) -> None:
    """A live writer adopts what others seal; both are killed at random in turn."""
    begin(store_dir)
    for round_ in range(6):
        kill_one(store_dir, victim, round_)
        seal(store_dir, f"id-{round_}", [stage(store_dir, f"r{round_}")], timeout=PATIENCE)
    with segstore.open(store_dir) as store:
        expected = [row for r in range(6) for row in rows(f"r{r}", 20)]
        assert contents(store) == [expected] * len(PARTS)


def kill_one(path: Path, victim: str, round_: int) -> None:
    from faults import KillingFiles

    def run(tell: Callable[[str], None]) -> None:
        nth = 3 + 7 * round_
        of_writer = unsynced(KillingFiles(0 if victim == "sealer" else nth))
        of_sealer = unsynced(KillingFiles(0 if victim == "writer" else nth))
        with segstore.open(path, files=of_writer):
            message = stage(path, f"r{round_}", files=of_sealer)
            seal(path, f"id-{round_}", [message], timeout=PATIENCE, files=of_sealer)

    in_child(run)


def test_what_a_killed_writer_had_recorded_is_visible_when_its_id_is_sealed_again(tmp_path: Path) -> None:
    """Nobody has the store open: the sealer finishes what the writer did not come to publish."""
    state = begin(tmp_path / "state")
    sealed_only(state, "one", [stage(state, "a", N)])
    recorded = 0
    for nth, path in killed_adoptions(state, tmp_path, lambda files, p: adopt(files, p, {})):
        if read_adoption(Files(), str(path / ".segstore" / "adopted"), "one") is None:
            continue
        recorded += 1
        seal(path, "one", [stage(path, "b", N, files=Unsynced())], files=Unsynced())
        with segstore.open(path, "r") as reader:
            assert contents(reader) == [rows("a", N)] * len(PARTS), f"call {nth}"
    assert recorded > 1


@pytest.mark.parametrize("damage", [b"", b"garbage", b"00000000 {}\n"], ids=["empty", "garbage", "flipped"])
def test_a_damaged_intent_adopts_nothing_twice(tmp_path: Path, damage: bytes) -> None:
    """What it had appended was not known, stayed, and its manifest was adopted behind it, without a word."""
    looked = 0
    for state in itertools.islice(intents_of(tmp_path, "copied"), 0, None, 4):
        (intent,) = (state / ".segstore" / "inbox").glob("*.intent")
        intent.write_bytes(damage)
        recorded = read_adoption(Files(), str(state / ".segstore" / "adopted"), "one") is not None
        with segstore.open(state, files=Unsynced()) as store:
            assert [one.path for one in store.mended] == [str(intent)]
            for held in contents(store):
                assert len(set(held)) == len(held), "adopted twice"
        assert not list((state / ".segstore" / "inbox" / "sealed").iterdir())
        results = list((state / ".segstore" / "inbox").glob("*.result"))
        assert bool(results) != recorded, "who sealed it is told, unless all of it is there"
        looked += 1
    assert looked > 1
