"""Manifests that can't be adopted: they are refused with a named error and quarantined, or kept for the next
try; they block no others.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import waiting
from background import caught_up
from faults import MUTATING, FailingFiles
from staging import (
    PARTS,
    SMALL,
    TINY_SEGMENTS,
    Unsynced,
    age,
    begin,
    contents,
    flip,
    inbox,
    left_in_inbox,
    quarantined,
    rows,
    stage,
    staged_paths,
    unsynced,
)
from stores import killed, raw_batches

import segstore
from segstore import errors
from segstore.files import Files
from segstore.records import Template
from segstore.storage.inbox import adopt
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import new_manifest, write_manifest
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.staging import Staged, Stager, abort, seal

pytestmark = pytest.mark.kind("faults")


def delete_topic(path: Path, _: Staged) -> None:
    with segstore.open(path) as store:
        store.delete_topic("u")


def remake_topic(path: Path, message: Staged) -> None:
    delete_topic(path, message)
    with segstore.open(path) as store:
        store.create_topic("u")


def lower_limit(path: Path, _: Staged) -> None:
    with segstore.open(path) as store:
        store.alter_topic("u", {"max.message.bytes": 100})


def compact(path: Path, _: Staged) -> None:
    with segstore.open(path) as store:
        store.alter_topic("u", {"cleanup.policy": "compact"})


def of_producer(path: Path, message: Staged) -> None:
    last = staged_paths(path, message)[-1]
    template = Template(producer_id=7, producer_epoch=0, base_sequence=0)
    data = raw_batches(range(20), 60, per_batch=1, template=template)
    last.write_bytes(data[: last.stat().st_size].ljust(last.stat().st_size, b"\0"))


REFUSALS: dict[str, tuple[Callable[[Path, Staged], object], type[Exception], str]] = {
    "topic deleted": (delete_topic, errors.UnknownTopicOrPartitionError, "'u'"),
    "topic made anew": (remake_topic, errors.UnknownTopicOrPartitionError, "was deleted since"),
    "larger than allowed by now": (lower_limit, errors.RecordTooLargeError, "max.message.bytes"),
    "without keys, compacted by now": (compact, errors.InvalidRecordError, "no key"),
    "a CRC that fails": (
        lambda p, m: flip(staged_paths(p, m)[-1], 1000),
        errors.StagedFilesError,
        "damaged, or none",
    ),
    "a length that is none": (lambda p, m: flip(staged_paths(p, m)[0], 8), errors.StagedFilesError, "batch"),
    "a file that is cut": (
        lambda p, m: os.truncate(staged_paths(p, m)[0], 200),
        errors.StagedFilesError,
        "200",
    ),
    "zeros": (
        lambda p, m: staged_paths(p, m)[0].write_bytes(bytes(m.files[0].size)),
        errors.StagedFilesError,
        "batch",
    ),
    "batches of a producer": (of_producer, errors.StagedFilesError, "damaged|producer|gaps"),
}


@pytest.mark.parametrize("open_", [True, False])
@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_manifest_is_named_and_put_aside(store_dir: Path, case: str, open_: bool) -> None:
    spoil, kind, text = REFUSALS[case]
    begin(store_dir, before=2)
    message = stage(store_dir, "a")
    spoil(store_dir, message)
    store = segstore.open(store_dir) if open_ else None
    with pytest.raises(kind, match=text):
        seal(store_dir, "one", [message])
    good = stage(store_dir, "b", parts=PARTS[:1])
    assert seal(store_dir, "one", [good]).offsets == {PARTS[0]: (2, 22)}
    if store is not None:
        store.close()
    assert left_in_inbox(store_dir) == []
    assert len(quarantined(store_dir)) == 3
    with segstore.open(store_dir) as store:
        assert contents(store, PARTS[:1]) == [rows("before", 2) + rows("b", 20)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_what_has_keys_goes_into_a_topic_that_is_compacted_by_now(store_dir: Path, codec: str) -> None:
    begin(store_dir)
    with Stager(store_dir) as stager:
        stager.append_batch("u", 0, rows("a", 20), [b"k%d" % i for i in range(20)], None, None, codec, 150)
        message = stager.finish()
    compact(store_dir, message)
    assert seal(store_dir, "one", [message]).offsets == {("u", 0): (0, 20)}


def test_what_is_refused_again_and_again_is_kept_once_and_not_for_ever(store_dir: Path) -> None:
    begin(store_dir)
    with segstore.open(store_dir) as store:
        for id_ in ("one", "one", "one", "two"):
            message = stage(store_dir, "a")
            flip(staged_paths(store_dir, message)[0], 1000)
            with pytest.raises(errors.StagedFilesError):
                seal(store_dir, id_, [message])
        store.engine.inbox.adopt_all()  # the sealer may be told before all is put aside
        folder = store_dir / ".segstore" / "quarantine"
        mine = folder / "mine"
        mine.mkdir()
        assert len(list(folder.iterdir())) == 3
        for each in folder.iterdir():
            age(each)
        store.engine.inbox._look()
        assert list(folder.iterdir()) == [mine]


def test_missing_files_are_named_before_anything_is_sealed(store_dir: Path) -> None:
    begin(store_dir)
    message = stage(store_dir, "a")
    staged_paths(store_dir, message)[0].unlink()
    with pytest.raises(errors.StagedFilesError, match="1 staged files are missing"):
        seal(store_dir, "one", [message])
    abort([message])
    assert left_in_inbox(store_dir) == []


BAD_MANIFESTS = {
    "empty": b"",
    "garbage": b"no manifest",
    "a wrong CRC": b'00000000 {"version":1,"id":"x","files":[]}\n',
    "zeros": bytes(4096),
}


@pytest.mark.parametrize("case", BAD_MANIFESTS)
def test_bad_manifests_block_nothing(store_dir: Path, case: str) -> None:
    begin(store_dir)
    folder = Folder(Files(), str(store_dir))
    folder.prepare()
    stem = "0" * 20 + "-" + "a" * 16 + "-" + "b" * 16
    Path(folder.manifest(stem)).write_bytes(BAD_MANIFESTS[case])
    assert any("no manifest" in finding.message for finding in segstore.check(store_dir))
    with segstore.open(store_dir):
        assert seal(store_dir, "good", [stage(store_dir, "a")]).offsets == dict.fromkeys(PARTS, (0, 20))
    assert quarantined(store_dir) == [f"sealed-{stem}.manifest"]
    Path(folder.result(stem)).unlink()  # nobody waits for it
    assert left_in_inbox(store_dir) == []


def test_a_partition_that_never_was(store_dir: Path) -> None:
    begin(store_dir)
    (file, other) = stage(store_dir, "a").files
    folder = Folder(Files(), str(store_dir))
    write_manifest(folder, "one", [file, StagedFile(*other)._replace(partition=9)])
    with segstore.open(store_dir) as store:
        assert contents(store) == [[], []]
    assert len(quarantined(store_dir)) == 3


PASSING = {
    "damage elsewhere": errors.CorruptRecordError("the log", 7, 3, "wrong CRC"),
    "an error that nobody has thought of": errors.UnverifiedTransactionError("not verified"),
    "a setting that may be changed": errors.ConfigError("a codec that is not installed"),
}


@pytest.mark.parametrize("case", PASSING)
def test_what_may_pass_keeps_the_manifest(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """What was not known to pass was refused for ever."""
    begin(store_dir)
    message = stage(store_dir, "a")

    def failing(self: adopt.Adopter, manifest: Any) -> Any:
        raise PASSING[case]

    with segstore.open(store_dir) as store:
        with monkeypatch.context() as patch:
            patch.setattr(adopt.Adopter, "adopt", failing)
            with pytest.raises(errors.SegstoreError, match=str(PASSING[case])[:20]):
                seal(store_dir, "one", [message])
        assert quarantined(store_dir) == []
        store.engine.inbox._look()  # type: ignore[union-attr]
        assert contents(store) == [rows("a", 20)] * 2
        assert seal(store_dir, "one", [message]).offsets == dict.fromkeys(PARTS, (0, 20))
    assert left_in_inbox(store_dir) == []


# --- the disk refuses ------------------------------------------------------------------------------


FAILING = {  # topic's settings, records before, store's settings
    "copied": ({}, 5, {}),
    "linked": (SMALL, 5, TINY_SEGMENTS),
    "linked, empty": (SMALL, 0, TINY_SEGMENTS),
}
GROWING = frozenset({"pwrite", "allocate", "copy_range", "link", "mkdir"})
FAULTS = {  # errno, how many calls of which fail, what becomes of the log
    "a call": (errno.EIO, 1, MUTATING, {"adopted", "put back", "fenced"}),
    "all calls from it on": (errno.EIO, 1000, MUTATING, {"adopted", "fenced"}),
    "a full disk": (errno.ENOSPC, 1000, GROWING, {"adopted", "put back"}),  # the second copy of the ids
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("case", FAILING)
def test_a_failing_disk_leaves_the_log_and_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, fault: str
) -> None:
    """At each call of an adoption. What is appended afterwards stays, and the next try adopts."""
    monkeypatch.setattr(adopt, "_AT_A_TIME", 1)  # two threads made one directory now and then: one call more
    config, before, options = FAILING[case]
    state, ends = begin(tmp_path / "state", config, before), set()
    for nth in itertools.count(1, 3 if fault == "all calls from it on" else 1):
        path = killed(state, tmp_path / f"failed-{nth}")
        how, expected = fail_once(path, nth, fault, options, rows("before", before))
        with segstore.open(path, config=options, files=Unsynced()) as store:
            assert contents(store) == [expected] * 2, f"call {nth}, {how}"
        assert segstore.check(path) == [], f"call {nth}, {how}"
        shutil.rmtree(path)
        if how == "not hit":
            assert ends - {"put back"} == FAULTS[fault][3] - {"put back"}
            assert FAULTS[fault][3] <= ends
            return
        ends.add(how)


class FlushingFiles(FailingFiles):
    """Another thread flushes a partition while its active segment's file is away."""

    store: segstore.Store
    flushed: threading.Thread | None = None

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().before(name, args, kwargs)
        away = self.hits and name == "open" and str(args[0]).endswith(f"u-0/{0:020}.log")
        if away and self.flushed is None and not os.path.exists(args[0]):
            self.flushed = threading.Thread(target=self.store.partition("u", 0).flush)
            self.flushed.start()
            self.flushed.join(0.2)  # it waits by now, or has failed


def test_a_flush_while_an_adoption_is_undone(tmp_path: Path) -> None:
    """It found no file in the empty segment's place, and fenced the partition."""
    config, before, options = FAILING["linked, empty"]
    state, met = begin(tmp_path / "state", config, before), 0
    for nth in itertools.count(1):
        path = killed(state, tmp_path / f"failed-{nth}")
        message = stage(path, "a", 16, files=Unsynced())
        files = FlushingFiles(GROWING, OSError(errno.ENOSPC, "injected"), nth=0)
        with segstore.open(path, config=options, files=unsynced(files)) as store:
            files.store, inbox = store, store.engine.inbox
            inbox.close()
            write_manifest(Folder(Unsynced(), str(path)), "one", message.files)
            files.arm(nth, 1000)
            inbox.adopt_all()
            hits = files.hits
            files.arm(0)
            if files.flushed is not None:
                files.flushed.join()
                met += 1
            assert [store.engine.partition(*part).segments.fenced for part in PARTS] == [None, None]
            inbox.adopt_all()
            assert contents(store) == [rows("a", 16)] * 2
        assert segstore.check(path) == []
        if not hits:
            break
    assert met > 0


def fail_once(
    path: Path, nth: int, fault: str, options: dict, expected: list[bytes]
) -> tuple[str, list[bytes]]:
    """Seal beside an open store whose `nth` call from then on fails, append, seal again: how it went, and
    what each partition holds when that store was opened anew.
    """
    number, times, calls, _ = FAULTS[fault]
    files, row = FailingFiles(calls, OSError(number, os.strerror(number)), nth=0), rows("later", 1)
    message = stage(path, "a", 16, files=Unsynced())
    store = segstore.open(path, config=options, files=unsynced(files))
    inbox = store.engine.inbox
    inbox.close()  # its thread: each try is made here
    write_manifest(Folder(Unsynced(), str(path)), "one", message.files)
    caught_up(store)  # what the open has left to the scheduler is no call of an adoption
    files.arm(nth, times)
    inbox.adopt_all()
    caught_up(store)
    adopted = inbox._ids.find("one") is not None
    how = ("adopted" if adopted else "put back") if files.hits else "not hit"
    files.arm(0)
    if any(store.engine.partition(*part).segments.fenced for part in PARTS):
        with suppress(errors.StorageError):  # a sync of the background may have failed: nobody was told yet
            store.close()
        all_of_it = expected + rows("a", 16)
        with segstore.open(path, "r") as reader:  # fenced by the sync behind an adoption, it is shown
            assert contents(reader) in ([expected] * 2, [all_of_it] * 2)
        return "fenced", all_of_it
    for part in PARTS:
        store.partition(*part).append_batch(row)
    if nth % 2:
        inbox.adopt_all()
        assert inbox._ids.find("one") is not None
    store.close()
    return how, expected + (rows("a", 16) + row if adopted else row + rows("a", 16))


def test_the_sealer_is_told_of_a_full_disk(store_dir: Path) -> None:
    begin(store_dir, before=5)
    files = FailingFiles({"pwrite"}, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), nth=0)
    message = stage(store_dir, "a")
    with segstore.open(store_dir, files=files) as store:
        files.arm(1)
        with pytest.raises(errors.StorageError) as caught:
            seal(store_dir, "one", [message])
        assert caught.value.errno == errno.ENOSPC
        assert contents(store) == [rows("before", 5)] * 2
        assert seal(store_dir, "one", [message]).offsets == dict.fromkeys(PARTS, (5, 25))
    assert left_in_inbox(store_dir) == []


@pytest.mark.parametrize("place", ["quarantine", "stem"])
def test_what_can_t_be_put_aside_is_told_once_however_often_it_is_looked_at(
    store_dir: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    """Before: two warnings at each look, for ever."""
    begin(store_dir, before=5)
    with segstore.open(store_dir) as store:
        inbox = store.engine.inbox
        inbox.close()  # its thread: each look is made here, so what was told is all there at the end
        folder = inbox.folder
        stem = new_manifest(folder, "one", [stage(store_dir, "a")]).stem
        in_the_way = Path(folder.quarantine)
        if place == "stem":
            in_the_way.mkdir()
            in_the_way /= stem
        in_the_way.write_text("no directory")
        caplog.clear()
        (store_dir / "manifest").write_text("junk")
        (store_dir / "manifest").rename(folder.manifest(stem))
        for _ in range(5):
            inbox._look()
        waiting.told()
        told = [record.getMessage() for record in caplog.records]
        assert sum(" is no manifest: " in line and "-> refused" in line for line in told) == 1
        assert sum("can't be adopted now: " in line for line in told) == 1
        assert sum("left in" in line for line in told) == (place == "quarantine")
        assert not any(record.exc_info for record in caplog.records)
        in_the_way.unlink()
        inbox._look()
        assert (Path(folder.quarantine) / stem).is_dir()


def test_a_full_disk_is_logged_once_however_often_it_is_tried(
    store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(store_dir, before=5)

    def full(name: str, args: tuple) -> None:
        if args[0].path.endswith(".log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = FailingFiles({"pwrite"}, full, nth=0)
    message = stage(store_dir, "a")
    with segstore.open(store_dir, files=files) as store:
        caplog.set_level(logging.INFO)
        caplog.clear()
        files.arm(1, 1 << 30)
        with pytest.raises(errors.StorageError):
            seal(store_dir, "one", [message])
        for _ in range(5):
            store.engine.inbox.adopt_all()
        files.arm(0)
        store.engine.inbox.adopt_all()
        assert contents(store) == [rows("before", 5) + rows("a", 20)] * 2
    waiting.told()
    said = [(kept.levelname, kept.getMessage()) for kept in caplog.records if "adopted" in kept.getMessage()]
    assert [level for level, _ in said] == ["WARNING", "INFO"]
    assert "can't be adopted now: [Errno 28] No space left on device" in said[0][1]
    assert said[1][1].endswith("is adopted, or refused, now")


def test_a_staged_file_whose_sync_failed_is_written_anew(store_dir: Path) -> None:
    """The kernel may call its pages clean from then on: another sync of the same file would prove nothing."""
    begin(store_dir, SMALL)
    message = stage(store_dir, "a")

    def fail(name: str, args: tuple) -> None:
        if args[0].path.endswith(".batches"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), args[0].path)

    files = FailingFiles({"sync"}, fail, nth=0)
    with segstore.open(store_dir, files=files, config=TINY_SEGMENTS) as store:
        for part in PARTS:
            store.partition(*part).append(b"between")
        files.arm(1, 1000)
        with pytest.raises(errors.StorageError):
            seal(store_dir, "one", [message])
        files.arm(0)
        assert contents(store) == [[b"between"]] * 2
        held = {path.stat().st_ino for path in staged_paths(store_dir, message)}
        assert seal(store_dir, "one", [message]).offsets == dict.fromkeys(PARTS, (1, 21))
        assert contents(store) == [[b"between", *rows("a", 20)]] * 2
        assert held.isdisjoint(path.stat().st_ino for path in store_dir.rglob("*.log"))


# --- what is left ----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["open", "pwrite", "truncate", "links"])
def test_a_stager_that_can_not_begin_leaves_nothing(store_dir: Path, call: str) -> None:
    begin(store_dir)
    with pytest.raises(errors.StorageError):
        Stager(store_dir, files=FailingFiles({call}, OSError(errno.EIO, os.strerror(errno.EIO))))
    assert inbox(store_dir) == []


def test_left_overs_of_the_dead_are_swept(store_dir: Path) -> None:
    begin(store_dir)
    old, young, sealed = (stage(store_dir, tag, parts=PARTS[:1]) for tag in ("a", "b", "c"))
    folder = Folder(Files(), str(store_dir))
    write_manifest(folder, "c", sealed.files)
    with Stager(store_dir) as living:
        living.append_batch("t", 1, rows("d", 5))
        for name in (old.stager, sealed.stager, living.name):
            age(Path(folder.stager(name)))
        for name in ("result", "intent.tmp", "manifest.tmp"):
            left = Path(folder.path, "0" * 20 + "-" + "a" * 16 + "-" + "b" * 16 + "." + name)
            left.write_bytes(b"x")
            age(left)
        found = [f.message for f in segstore.check(store_dir) if "left by a process" in f.message]
        assert len(found) == 4
        segstore.open(store_dir).close()
        names = {name.split("/")[0] for name in inbox(store_dir)}
        assert names == {young.stager, living.name}
        last = living.finish()
    done = seal(store_dir, "rest", [young, last])
    assert done.offsets == {PARTS[0]: (20, 45)}
    assert left_in_inbox(store_dir) == []


def test_abort_keeps_what_is_sealed(store_dir: Path) -> None:
    begin(store_dir)
    first, second = stage(store_dir, "a"), stage(store_dir, "b")
    write_manifest(Folder(Files(), str(store_dir)), "one", first.files)
    abort([first, second])
    assert {name.split("/")[0] for name in inbox(store_dir) if "sealed" not in name} == {first.stager}
    with segstore.open(store_dir) as store:
        assert contents(store) == [rows("a", 20)] * 2
