"""Staged appends to a replicated store: adopted once, whole, whichever directory is lost, whoever leads."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import KillingFiles
from replicated_stores import PATIENT, Directories, await_in_sync, retrying
from staging import quarantined, rows, sealed_only
from stores import in_child, killed, values
from waiting import until

import segstore
from segstore import errors, names
from segstore.coordinator.inboxes import adoptions
from segstore.coordinator.inboxes.adoptions import Adoptions
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.storage.bulk_import import importing_into
from segstore.storage.inbox.layout import Folder
from segstore.storage.log.replica import Replica
from segstore.storage.staging import Staged, Stager, seal
from segstore.storage.staging.seal import adopt

pytestmark = pytest.mark.kind("replicated stores")

PARTS = (("t", 0), ("t", 1), ("u", 0))
COMMITTED = {"isolation_level": "read_committed"}


def opened(directories: Directories, **config: Any) -> Any:
    """A store with topics "t", in all directories, and "u", in the second one alone."""
    store = directories.open(min_insync_replicas=2, **{**PATIENT, **config})
    if "t" not in store.topics():
        store.create_topic("t", 2, replication_factor=len(directories.paths))
        store.create_topic("u", assignments={0: [1]})
    return store


def staged(path: Path, tag: str = "a", n: int = 20, parts: Any = PARTS) -> Staged:
    with Stager(path) as stager:
        for topic, partition in parts:
            stager.append_batch(topic, partition, rows(tag, n), batch_bytes=300)
        return stager.finish()


def sealed(path: Path, id_: str = "id", tag: str = "a", parts: Any = PARTS, **options: Any) -> Any:
    return seal(path, id_, [staged(path, tag, parts=parts)], timeout=60, **options)


def held(store: Any, parts: Any = PARTS) -> list[list[bytes | None]]:
    return [values(store.partition(*part), **COMMITTED) for part in parts]


def assert_once(store: Any, *tags: str) -> None:
    """Each of these was adopted once, in this order, in all partitions."""
    expected = [value for tag in tags for value in rows(tag, 20)]
    for part, found in zip(PARTS, held(store), strict=True):
        assert found == expected, (part, len(found), len(expected))


# --- adopted once ------------------------------------------------------------------------------


def test_any_directory_takes_records_for_any_partition(three: Directories) -> None:
    store = opened(three)
    done = [sealed(path, f"id-{n}", f"tag-{n}") for n, path in enumerate(three.paths)]
    assert_once(store, "tag-0", "tag-1", "tag-2")
    for adoption in done:
        assert (adoption.records, adoption.others) == (60, 0)
        for part, (first, end) in adoption.offsets.items():
            got = [record.value for record in store.partition(*part).read(first) if record.offset < end]
            assert got == rows(adoption.id.replace("id", "tag"), 20)
    await_in_sync(store)


SETTINGS: dict[str, dict[str, Any]] = {
    "stamped by the log": {"message.timestamp.type": "LogAppendTime"},
    "compressed": {"compression.type": "zstd"},
    "small segments": {"segment.bytes": 100_000},
    "compacted": {"cleanup.policy": "compact"},
    "synced": {"flush.messages": 1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_batches_of_all_sizes_are_taken_by_topics_of_all_kinds(two: Directories, name: str) -> None:
    store = opened(two)
    store.create_topic("kind", replication_factor=2, config={"max.message.bytes": 8 << 20, **SETTINGS[name]})
    made = [os.urandom(50) * 1_000 for _ in range(100)] if name != "small segments" else rows("x", 3_000)
    keys = [b"%d" % number for number in range(len(made))]
    with Stager(two.paths[1]) as stager:
        large = 5_000_000 if name != "small segments" else 50_000
        stager.append_batch("kind", 0, made, keys, 1_000, batch_bytes=large)
        stager.append_batch("kind", 0, made[:10], keys[:10], 1_000)
        message = stager.finish()
    done = seal(two.paths[1], "id", [message])
    assert done.records == len(made) + 10
    log = store.partition("kind", 0)
    assert values(log, **COMMITTED) == [*made, *made[:10]]
    stamps = {log.read_one(0).timestamp, log.read_one(len(made)).timestamp}
    assert (stamps == {1_000}) == (name != "stamped by the log")


def test_others_may_append_between(two: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    """The span has their records, too, and says how many."""
    store, chunks = opened(two), adoptions._chunks

    def disturbed(folder: Folder, file: Any) -> Iterator[Any]:
        for each in chunks(folder, file):
            yield each
            if file.topic == "u":
                store.partition("u", 0).append(b"other")

    monkeypatch.setattr(adoptions, "_chunks", disturbed)
    with Stager(two.paths[0]) as stager:
        for _ in range(2):
            stager.append_batch("u", 0, [os.urandom(900_000) for _ in range(3)], batch_bytes=900_000)
        message = stager.finish()
    done = seal(two.paths[0], "id", [message])
    first, end = done.offsets["u", 0]
    assert (done.records, done.others) == (6, end - first - 6)
    assert done.others > 0
    assert seal(two.paths[1], "id", []) == done


def test_an_id_stands_for_one_piece_of_work(three: Directories) -> None:
    """In whichever directory other work comes under it, also after the ids were read anew."""
    store = opened(three)
    done = sealed(three.paths[0], source="offsets up to 20")
    for path in three.paths:
        with pytest.raises(
            errors.IdempotencyConflictError, match="60 records of offsets up to 20; 60 records"
        ):
            sealed(path, tag="other rows", source="offsets up to 30")
        assert sealed(path, tag="other rows", source="offsets up to 20") == done
        sealed_only(path, "id", [staged(path, "other rows", n=30)])
        store.close()
        store = opened(three)
        assert len(quarantined(path)) == 1 + len(PARTS)
    assert_once(store, "a")
    assert all(not any(Folder(store.context.files, str(path)).stems()) for path in three.paths)


def test_an_id_is_known_to_all_directories(three: Directories) -> None:
    store = opened(three)
    done = sealed(three.paths[0])
    for again in (three.paths, three.paths):
        for path in again:
            assert sealed(path, tag="other rows") == done
        store.close()
        store = opened(three)
    assert_once(store, "a")
    assert all(not any(Folder(store.context.files, str(path)).stems()) for path in three.paths)


@pytest.mark.parametrize("lost", range(3))
def test_an_id_outlives_the_loss_of_any_directory(three: Directories, lost: int) -> None:
    three.config |= {"default.replication.factor": 3}
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", 2)
    parts, left = (("t", 0), ("t", 1)), (lost + 1) % 3
    done = seal(three.paths[lost], "id", [staged(three.paths[lost], parts=parts)])
    await_in_sync(store)
    three.lose(lost)
    with pytest.raises(errors.StorageError):
        staged(three.paths[lost], parts=parts)

    def again() -> Any:
        return seal(three.paths[left], "id", [staged(three.paths[left], "b", parts=parts)])

    assert retrying(again) == done
    until(lambda: lost in store.describe_partition("t", 0).offline)
    store.close()
    store = three.open()
    assert retrying(again) == done
    assert held(store, parts) == [rows("a", 20)] * 2
    store.close()
    three.bring_back()
    with three.open() as store:
        assert seal(three.paths[lost], "id", []) == done
        assert held(store, parts) == [rows("a", 20)] * 2


def test_what_a_lost_directory_has_sealed_is_adopted_once_when_it_is_back(three: Directories) -> None:
    """The sealer got an error, and has sealed the same id in another directory."""
    store = opened(three)
    store.close()
    sealed_only(three.paths[0], "id", [staged(three.paths[0], "a")])
    three.lose(0)
    with pytest.raises(errors.StorageError):
        seal(three.paths[0], "id", [])
    store = opened(three)
    done = sealed(three.paths[1], tag="b")
    store.close()
    three.bring_back()
    store = opened(three)
    assert_once(store, "b")
    assert seal(three.paths[0], "id", []) == done
    assert Folder(store.context.files, str(three.paths[0])).stems() == []


def test_an_older_directory_that_returns_adopts_nothing_twice(three: Directories) -> None:
    """Its copy of the ids lacks one, and its inbox has the manifest still."""
    store = opened(three)
    store.close()
    sealed_only(three.paths[0], "id", [staged(three.paths[0], "a")])
    shutil.copytree(three.paths[0], three.base / "older", symlinks=True)
    store = opened(three)
    assert_once(store, "a")
    store.close()
    shutil.rmtree(three.paths[0])
    os.rename(three.base / "older", three.paths[0])
    store = opened(three)
    assert seal(three.paths[0], "id", []).records == 60
    assert_once(store, "a")


def test_one_id_that_is_sealed_in_two_directories_at_once_is_adopted_once(three: Directories) -> None:
    store, done = opened(three), list[Any]()
    messages = [(path, staged(path, "a")) for path in three.paths]
    threads = [
        threading.Thread(target=lambda path=path, message=message: done.append(seal(path, "id", [message])))
        for path, message in messages
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(done) == 3
    assert done[0] == done[1] == done[2]
    assert_once(store, "a")


def test_an_attempt_that_hangs_is_fenced(two: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoptions, "TAKE_OVER", 0.2)
    store, go_on, begun, told = opened(two), threading.Event(), threading.Event(), list[Any]()
    chunks = adoptions._chunks

    def late(folder: Folder, file: Any) -> Any:
        if folder.root == str(two.paths[0]) and file.topic == "u":
            begun.set()
            go_on.wait(60)
        return chunks(folder, file)

    monkeypatch.setattr(adoptions, "_chunks", late)

    hanging = threading.Thread(target=lambda: told.append(sealed(two.paths[0], tag="a")))
    hanging.start()
    assert begun.wait(60)
    done = sealed(two.paths[1], tag="b")
    go_on.set()
    hanging.join(60)
    assert told == [done]
    assert seal(two.paths[0], "id", []) == done
    assert_once(store, "b")


# --- errors, and what comes after ----------------------------------------------------------------


def test_too_few_replicas_in_sync_is_told_and_passes(three: Directories) -> None:
    three.config |= {"default.replication.factor": 3}
    store = three.open(min_insync_replicas=3, inbox_check_interval_ms=600_000)
    store.create_topic("t")
    sealed_before = seal(three.paths[0], "before", [staged(three.paths[0], "a", parts=[("t", 0)])])
    three.lose(2)
    until(lambda: len(store.describe_partition("t", 0).isr) < 3)
    with pytest.raises(errors.NotEnoughReplicasError):
        seal(three.paths[0], "id", [staged(three.paths[0], "b", parts=[("t", 0)])])
    assert held(store, [("t", 0)]) == [rows("a", 20)]
    assert seal(three.paths[1], "before", []) == sealed_before
    os.rename(three.base / "lost-2", three.paths[2])
    store.replace_directory(2, three.paths[2])
    await_in_sync(store)
    done = seal(three.paths[1], "id", [staged(three.paths[1], "c", parts=[("t", 0)])])
    assert seal(three.paths[0], "other", [staged(three.paths[0], "d", parts=[("t", 0)])]) != done
    # What was sealed first waits in the first directory: either of the two was adopted under the id.
    (found,) = held(store, [("t", 0)])
    assert found in [[*rows("a", 20), *rows(tag, 20), *rows("d", 20)] for tag in "bc"]


def test_the_first_adoption_waits_for_as_many_directories_as_its_topics_have_replicas(
    three: Directories,
) -> None:
    store = opened(three, inbox_check_interval_ms=100)
    three.lose(2)
    until(lambda: 2 in store.describe_partition("t", 0).offline)
    with pytest.raises(errors.InvalidReplicationFactorError):
        sealed(three.paths[0])
    three.bring_back()
    store.replace_directory(2, three.paths[2])
    assert retrying(lambda: seal(three.paths[0], "id", [])).records == 60
    assert_once(store, "a")


def test_a_leader_that_is_lost_within_an_adoption(
    three: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica is elected, the attempt is aborted, and the next one adopts all."""
    three.config |= {"default.replication.factor": 3}
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", 2)
    parts = (("t", 0), ("t", 1))
    leader = store.describe_partition("t", 1).leader
    home = three.paths[(leader + 1) % 3]
    chunks, lost = adoptions._chunks, list[int]()

    def losing(folder: Folder, file: Any) -> Iterator[Any]:
        for each in chunks(folder, file):
            yield each
            if file.partition == 1 and not lost:
                lost.append(leader)
                three.files.fail(three.paths[leader])

    monkeypatch.setattr(adoptions, "_chunks", losing)
    done = seal(home, "id", [staged(home, parts=parts)], timeout=120)
    assert lost == [leader]
    assert done.records == 40
    assert held(store, parts) == [rows("a", 20)] * 2
    three.files.mend()
    store.close()
    with three.open() as store:
        assert held(store, parts) == [rows("a", 20)] * 2
        assert seal(home, "id", []) == done


def test_a_failed_adoption_is_passed_over_by_readers_of_what_is_committed(
    two: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(two, inbox_check_interval_ms=600_000)
    message = staged(two.paths[0])
    chunks, rotten = adoptions._chunks, [True]

    def failing(folder: Folder, file: Any) -> Any:
        if file.topic == "u" and rotten.pop():
            rotten.append(False)
            raise OSError(5, "the disk", "it")
        return chunks(folder, file)

    monkeypatch.setattr(adoptions, "_chunks", failing)
    with pytest.raises(errors.StorageError):
        seal(two.paths[0], "id", [message])
    assert held(store) == [[], [], []]
    done = seal(two.paths[0], "id", [message])
    assert_once(store, "a")
    assert (
        len(values(store.partition("t", 0))) == 40
    )  # as in Kafka: read_uncommitted has the aborted ones too
    assert done.offsets["t", 0][0] > 20


def test_a_damaged_file_is_refused_and_nothing_of_it_is_seen(two: Directories) -> None:
    store = opened(two)
    message = staged(two.paths[0])
    file = message.files[-1]
    path = two.paths[0] / ".segstore/inbox" / file.stager / file.name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.StagedFilesError):
        seal(two.paths[0], "id", [message])
    assert held(store) == [[], [], []]
    assert (two.paths[0] / ".segstore/quarantine").exists()
    assert sealed(two.paths[0]).records == 60


def test_a_topic_that_was_deleted_since_is_told(two: Directories) -> None:
    store = opened(two)
    message = staged(two.paths[0])
    store.delete_topic("u")
    store.create_topic("u", assignments={0: [0]})
    with pytest.raises(errors.UnknownTopicOrPartitionError, match="was deleted since"):
        seal(two.paths[0], "id", [message])
    assert held(store) == [[], [], []]


def test_where_no_process_has_it_open_the_sealer_needs_all_directories(two: Directories) -> None:
    opened(two).close()
    message = staged(two.paths[1])
    with pytest.raises(errors.ReplicaOfflineError, match="open_replicated"):
        seal(two.paths[1], "id", [message])
    done = seal(two.paths[1], "id", [message], opener=lambda: opened(two))
    assert done.records == 60
    assert_once(opened(two), "a")


def test_a_directory_that_is_offline_takes_nothing(three: Directories) -> None:
    """Its disk answers again; the process has taken it out, and says so."""
    store = opened(three)
    three.files.fail(three.paths[2])
    until(lambda: 2 in store.describe_partition("t", 0).offline)
    three.files.mend()
    message = staged(three.paths[2])
    with pytest.raises(errors.ReplicaOfflineError):
        seal(three.paths[2], "id", [message])
    assert held(store) == [[], [], []]
    store.replace_directory(2, three.paths[2])
    assert seal(three.paths[2], "id", [message]).records == 60
    assert_once(store, "a")


# --- topics, imports, ids that move ------------------------------------------------------------------


def test_stagers_see_the_topics_of_the_whole_store(three: Directories) -> None:
    store = opened(three)
    with Stager(three.paths[0]) as stager:
        with pytest.raises(errors.UnknownTopicOrPartitionError, match="there are: t, u"):
            stager.append_batch("v", 0, [b"x"])
        store.create_topic("v", 3, assignments={n: [2] for n in range(3)}, config={"max.message.bytes": 500})
        assert stager.append_batch("v", 2, [b"x"]) == 1
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            stager.append_batch("v", 3, [b"x"])
        with pytest.raises(errors.InvalidTopicError):
            stager.append_batch("__segstore_adopted", 0, [b"x"])
    sealed(three.paths[1])
    with pytest.raises(errors.InvalidTopicError):
        store.partition("__segstore_adopted", 0).append(b"x")
    store.delete_topic("v")
    until(lambda: not any((path / ".segstore/inbox/topics/v.json").exists() for path in three.paths))
    (three.paths[0] / ".segstore/inbox/topics/t.json").write_bytes(b"nonsense")
    with Stager(three.paths[0]) as stager, pytest.raises(errors.CorruptCheckpointError):
        stager.append_batch("t", 0, [b"x"])
    store.close()
    store = opened(three)
    assert sealed(three.paths[0], "another id").records == 60


@pytest.mark.hangs
@pytest.mark.parametrize("fenced", [False, True])
def test_a_new_topic_is_told_to_stagers_of_directories_that_answer_late(
    three: Directories, fenced: bool
) -> None:
    """A directory whose disk hangs is waited for, until its session is over."""
    store = opened(three, broker_session_timeout_ms=1_500 if fenced else 600_000)
    sealed(three.paths[1], "before")
    three.files.hang(three.paths[2])
    until(lambda: store.replicated.manager.directories[2].hangs)
    made = threading.Thread(target=lambda: store.create_topic("v", assignments={0: [0, 1]}), daemon=True)
    made.start()
    if not fenced:
        made.join(1)
        assert made.is_alive()
        three.files.mend()
    made.join(120)
    there = [(path / ".segstore/inbox/topics/v.json").exists() for path in three.paths]
    assert there == [True, True, not fenced]
    assert sealed(three.paths[0], parts=[("v", 0)]).records == 20
    three.files.mend()
    until(lambda: (three.paths[2] / ".segstore/inbox/topics/v.json").exists())


def test_an_import_is_there_whole_or_not_at_all(two: Directories) -> None:
    store = opened(two)
    with importing_into(store, "new", 2) as (info, stager):
        assert info.partitions == 2
        for number in range(2):
            stager.append_batch("new", number, rows("import", 50))
    assert held(store, [("new", 0), ("new", 1)]) == [rows("import", 50)] * 2
    with pytest.raises(errors.InvalidTypeError), importing_into(store, "newer", 2) as (_, stager):
        stager.append_batch("newer", 0, 5)
    assert "newer" not in store.topics()
    with pytest.raises(errors.StagedFilesError):
        adopt(store, "id", [staged_elsewhere(two.base / "plain")])


def staged_elsewhere(path: Path) -> Staged:
    with segstore.open(path) as plain:
        plain.create_topic("t")
    return staged(path, parts=[("t", 0)])


def test_ids_go_along_into_a_replicated_store_and_back(two: Directories) -> None:
    plain = two.paths[0]
    with segstore.open(plain) as store:
        store.create_topic("t")
        before = seal(plain, "before", [staged(plain, "a", parts=[("t", 0)])])
    with two.open(adopt=True) as store:
        store.reassign({("t", 0): [0, 1]})
        assert seal(two.paths[1], "before", [staged(two.paths[1], "b", parts=[("t", 0)])]) == before
        since = seal(two.paths[0], "since", [staged(two.paths[0], "c", parts=[("t", 0)])])
        until(lambda: not store.reassignments())
        await_in_sync(store)
    segstore.unreplicate(two.paths, 1, witness=two.witness, config=two.config)
    with segstore.open(two.paths[1]) as store:
        assert seal(two.paths[1], "before", []) == before
        assert seal(two.paths[1], "since", []) == since
        assert values(store.partition("t", 0), **COMMITTED) == [*rows("a", 20), *rows("c", 20)]
    two.judged = False
    assert segstore.check(two.paths[1]) == []


def test_ids_are_forgotten_when_there_are_too_many(two: Directories) -> None:
    store = opened(two, inbox_ids_retention_count=3)
    for number in range(6):
        sealed(two.paths[number % 2], f"id-{number}", f"tag-{number}")
    store.close()
    store = opened(two)
    kept = [each.id for each in shared(store, Adoptions).ids.all()]
    assert kept == ["id-3", "id-4", "id-5"]
    store.close()
    store = opened(two)
    assert [each.id for each in shared(store, Adoptions).ids.all()] == kept
    assert seal(two.paths[1], "id-3", []).records == 60


# --- kills ---------------------------------------------------------------------------------------


class KillingAdoption(KillingFiles):
    """Files that kill the process at the `nth` change from the first look at a manifest on."""

    begun = False

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.begun |= bool(args) and str(getattr(args[0], "path", args[0])).endswith(".manifest")
        if self.begun:
            super().before(name, args, kwargs)


def test_a_kill_at_calls_of_an_adoption(tmp_path: Path, seed: int) -> None:
    """Whatever is on the disks then, the next open adopts once, and the sealer is told the same each time."""
    state, rng, nth, kills = tmp_path / "state", random.Random(seed), 0, 0
    state.mkdir()
    directories = Directories(state, 2, witness=True)
    opened(directories).close()
    sealed_only(directories.paths[0], "id", [staged(directories.paths[0])])
    config, pause = directories.config, 80

    def reopen(base: Path, **options: Any) -> Any:
        paths = [base / "d0", base / "d1"]
        return segstore.open_replicated(paths, witness=base / "witness", config=config, **options)

    while True:
        nth += rng.randrange(1, pause)
        base = killed(state, tmp_path / f"killed-{nth}")
        ended, _ = in_child(lambda tell, nth=nth, base=base: reopen(base, files=KillingAdoption(nth)).close())
        with reopen(base) as store:
            await_in_sync(store)
            done = retrying(lambda base=base: seal(base / "d0", "id", []))
            assert done.records == 60, nth
            assert_once(store, "a")
            assert sealed(base / "d1", tag="b") == done
        assert [segstore.check(base / name) for name in ("d0", "d1")] == [[], []], nth
        shutil.rmtree(base)
        if not ended:
            break
        assert ended == signal.SIGKILL
        kills += 1
    assert kills > 3


def test_r38_ids_and_transactions_are_read_when_readers_see_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill the leader's core knew the new high watermark a moment before the readers did: the ids of
    adopted manifests and the states of transactions were read in between, as none, and records were adopted
    twice.
    """
    state = tmp_path / "state"
    state.mkdir()
    directories = Directories(state, 2, witness=True)
    with opened(directories):
        done = sealed(directories.paths[0])
        base = killed(state, tmp_path / "killed")
    set_high_watermark, seen = Replica.set_high_watermark, set[Replica]()

    def late(self: Replica, offset: int) -> None:
        if self not in seen:
            seen.add(self)
            time.sleep(0.5)
        set_high_watermark(self, offset)

    for known in base.glob(f"d*/{names.OURS}/**/{names.ADOPTED}*"):
        known.unlink()  # as if the kill came before it was written
    paths = [base / "d0", base / "d1"]
    sealed_only(paths[0], "id", [staged(paths[0])])
    monkeypatch.setattr(Replica, "set_high_watermark", late)
    with segstore.open_replicated(paths, witness=base / "witness", config=directories.config) as store:
        assert [*shared(store, TransactionCoordinator).transactions()] == ["__segstore_adopted/id"]
        assert retrying(lambda: seal(paths[0], "id", [])) == done
        assert_once(store, "a")
