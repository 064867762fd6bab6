"""The inbox, `.segstore/inbox/`: sealers rename manifests (lists of staged files) into it, and the store's
writer adopts them (appends their records, once).

A manifest that can never be adopted is moved to `.segstore/quarantine/<stem>/`. Threads: after `begin` one
thread sleeps until a manifest is sealed, and adopts it; each call of `adopt` has a thread of its own. So no
adoption runs in a thread that runs signal handlers. A lock is held during adoptions, so that manifests are
adopted one after the other.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from segstore import names
from segstore._native import descriptors, lib
from segstore.config import StoreConfig
from segstore.errors import (
    CorruptCheckpointError,
    SegstoreError,
    StagedFilesError,
    StorageError,
)
from segstore.integers import INT32_MAX
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.context import StoreContext, wall_clock
from segstore.storage.inbox.adopt import Adopter
from segstore.storage.inbox.adopted_ids import AdoptedIds
from segstore.storage.inbox.cleanup import put_aside, remove_earlier, sweep
from segstore.storage.inbox.intent import read_intent, remove_intent, undo
from segstore.storage.inbox.known_ids import Adoption
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import NEVER, Manifest, new_manifest, read_manifest, write_result
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.inbox.unsynced_joins import UnsyncedJoins
from segstore.storage.log.partition import Partition
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.reported_failures import ReportedFailures
from segstore.threads import Background, Latch, apart, others_are_gone

# --- watch -------------------------------------------------------------------------------------

_LOOK = 0.05  # seconds between two polls
_NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOSYS, errno.EPERM})


class RenameWatch:
    """Watches a directory, by inotify, for files that are renamed into it. The directory must exist.

    Only one thread may call `wait`; any thread may call `stop`. If no inotify watch is available, `wait`
    returns True after at most 50 ms, so that its caller polls.
    """

    def __init__(self, directory: str) -> None:
        """Begin to watch. Raises OSError."""
        self._stopped = Latch()
        self._slot = descriptors()
        code = lib.seg_watch(self._slot, os.fsencode(directory))
        if code < 0:
            if -code not in _NONE_LEFT:
                raise OSError(-code, os.strerror(-code), directory)
            why = os.strerror(-code)
            log.warning("%s can't be watched (%s): it is looked at every 50 ms", directory, why)
        self._fd = self._slot[0]  # below 0 if no inotify watch is available

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for a new file. Return True if a file may have arrived or `stop` was called,
        else False. Raises OSError.
        """
        if self._fd < 0:
            return self._stopped.wait(min(seconds, _LOOK)) or True
        result = lib.seg_watch_wait(self._fd, int(min(seconds * 1000, INT32_MAX)))
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return bool(result)

    @property
    def stopped(self) -> bool:
        return self._stopped.is_open

    def stop(self) -> None:
        """Make `wait` return at once: the call that is under way, or the next call."""
        self._stopped.open()
        if self._fd >= 0:
            lib.seg_watch_stop(self._fd)

    def close(self) -> None:
        """Close the watch. No call of `wait` may be under way or follow."""
        self._fd = -1
        lib.seg_close(self._slot)


# --- inbox ------------------------------------------------------------

log = Logger("segstore")
Key = tuple[str, int]


class Adopts(Protocol):
    """The interface of `Adopter`, and of the class that adopts manifests in a replicated store."""

    def adopt(self, manifest: Manifest) -> Adoption:
        """Adopt a manifest, and return its adoption. If the manifest's id was adopted before, only return the
        earlier adoption. After an error listed in `NEVER` the manifest can never be adopted.
        """


class Inbox:
    """The inbox of one store directory, the root. `root_names` are the paths, relative to the root, of the
    files in the root and in `.segstore`. `wake_sealers` wakes the threads that wait in `seal`, in all
    processes.
    """

    def __init__(
        self,
        context: StoreContext,
        config: StoreConfig,
        root_names: Collection[str],
        topics: Callable[[], Mapping[str, TopicInfo]],
        partition: Callable[[str, int], Partition],
        wake_sealers: Callable[[], None],
    ) -> None:
        """Make the inbox's missing directories, and read the adopted ids. Raises OSError."""
        self._context, self._config, self._topics, self._wake_sealers = context, config, topics, wake_sealers
        self.folder = Folder(context.files, context.root, context.report)
        self.folder.prepare()
        # A failure that each `_look` meets again is reported once. Keys: the stem of a manifest that can't be
        # adopted now, (stem,) for a refused manifest, "left-overs" for a failed `sweep`, and "looking" for
        # any other error of `_look`.
        self._reported = ReportedFailures()
        self._make_way(root_names)
        self._ids = AdoptedIds(
            context.files,
            self.folder.adopted,
            config.inbox_ids_retention_ms,
            config.inbox_ids_retention_count,
        )
        for wrong in self._ids.wrong:
            context.report(*wrong)
        self._unsynced = UnsyncedJoins(self.folder, context.report, partition)
        self._adopter: Adopts = Adopter(
            self.folder,
            self._ids,
            topics,
            partition,
            context.clock,
            config.inbox_segment_bytes,
            self._unsynced.add,
        )
        self._lock, self._noting = Mutex(), Mutex()
        self._thread: Background | None = None
        self._ended = Latch()
        self._ending: float | None = None  # the most seconds that `close` waits (None: no limit)
        self._looked = Latch()  # opened when the first `_look` has ended
        self._failed: BaseException | None = None
        self._watch: RenameWatch | None = None

    # --- opening ----------------------------------------------------------------------------

    def _make_way(self, root_names: Collection[str]) -> None:
        """If a directory or special file has the name `adopted` or `adopted.copy`, move it to the quarantine.
        The other of the two files still has the ids.
        """
        for name in (names.ADOPTED, names.ADOPTED_COPY):
            place = f"{names.OURS}/{name}"
            if place in root_names or place + names.TEMPORARY in root_names:
                path = f"{self.folder.ours}/{name}"
                aside = self._context.make_way(path)
                if aside:
                    self._context.report(path, "not a regular file", f"made anew from the other copy{aside}")

    def join_again(self, durable_below: Callable[[TopicInfo, int], int]) -> None:
        """Repair joined segments after a crash: each segment that was not synced is joined again from its
        staged files, and synced. Segments that end at or below the offset `durable_below(topic, partition)`
        are durable already, and stay unchanged. Called before partitions are opened. Raises OSError.
        """
        self._unsynced.join_again(self._topics(), self._ids, durable_below)

    def undo_unfinished(self) -> set[Key]:
        """Undo the unfinished adoptions (those that have left an intent file) whose ids are not recorded.
        Called before partitions are opened.

        Return (topic, partition) of each partition of the unfinished adoptions whose ids are recorded. The
        caller makes the records of these partitions visible together. Raises OSError.
        """
        finished: set[Key] = set()
        for stem in self.folder.of_kind(names.INTENT):
            try:
                intent = read_intent(self.folder, stem)
            except CorruptCheckpointError as error:
                self._give_up(stem, error)
                continue
            if self._ids.find(intent.id) is None:
                undo(self._context.files, self._context.root, self._topics(), intent.places)
                remove_intent(self.folder, stem)
            else:
                finished |= {
                    (place.topic, place.partition)
                    for place in intent.places
                    if place.topic in self._topics()
                    and self._topics()[place.topic].topic_id == place.topic_id
                }
        return finished

    def _give_up(self, stem: str, error: CorruptCheckpointError) -> None:
        """Move a damaged intent file (the old ends of the logs of an adoption) to the quarantine, and refuse
        the adoption's manifest. Raises OSError.
        """
        # No crash damages an intent, because it is synced before its rename. Without a readable intent the
        # old ends of the logs are unknown. The logs may have some or all of the records, so the manifest is
        # not adopted again.
        path = self.folder.intent(stem)
        put_aside(self.folder, stem, path)
        self._context.report(path, error.reason, f"moved to {os.path.join(self.folder.quarantine, stem)}")
        try:
            manifest = read_manifest(self.folder, stem)
        except (StagedFilesError, FileNotFoundError):
            return  # `_look` refuses a damaged manifest, and a missing manifest is never adopted
        if self._ids.find(manifest.id) is None:
            reason = (
                f"the adoption of {manifest.id!r} was begun, and {path}, which says what was appended, is "
                "damaged: look for its records before they are sealed again"
            )
            self._refuse(stem, manifest, StagedFilesError(reason), is_listed=True)

    @property
    def ids(self) -> list[Adoption]:
        """Return the adoptions that the directory has recorded, the newest last."""
        return self._ids.all()

    def begin_with(self, adopter: Adopts, known: Iterable[Adoption], ending: float) -> None:
        """Begin as the inbox of one directory of a replicated store. `adopter` adopts the manifests. `known`
        are the store's adoptions; those that this directory lacks are recorded in it. `close` waits at most
        `ending` seconds for an adoption, because the disk may hang. Raises OSError.
        """
        self._adopter, self._ending = adopter, ending
        for adoption in known:
            self.note(adoption)
        self.begin()

    def note(self, adoption: Adoption) -> None:
        """Record an adoption in this directory, unless it is recorded here already. Sealers look for its id
        here. Raises OSError.
        """
        with self._noting:
            if self._ids.find(adoption.id) is None:
                self._ids.record(adoption)

    def begin(self) -> None:
        """Adopt the manifests that wait, and start the thread that adopts each new manifest. Raises
        OSError.
        """
        self.folder.remove_gathered()
        # The watch begins before the first `_look`, so that a manifest that is sealed during this first call
        # is noticed, too.
        self._watch = RenameWatch(self.folder.sealed)
        for stem in self.folder.of_kind(names.INTENT):
            if not self._context.files.exists(self.folder.manifest(stem)):
                self.folder.unlink(self.folder.intent(stem))
        if others_are_gone():  # no thread can be started while the interpreter exits
            self._look()
            return
        self._thread = Background(self._run, "segstore-inbox")
        self._thread.start()
        self._looked.wait()
        failed, self._failed = self._failed, None
        try:
            if failed is not None:
                raise failed
        finally:
            del failed  # breaks a reference cycle: the error's traceback refers to this frame

    # --- adopting ---------------------------------------------------------------------------

    def _run(self) -> None:
        watch = self._watch
        assert watch is not None
        try:
            self._look()
        except BaseException as error:
            self._failed = error
            self._ended.open()
            return
        finally:
            self._looked.open()
        while not watch.stopped:
            try:
                watch.wait(self._config.inbox_check_interval_ms / 1000)
                if not watch.stopped:
                    self._look()
                    self._reported.over("looking")
            except Exception as error:
                if self._reported.is_new("looking", error):
                    log.exception("the inbox of %s can't be looked at now", self._context.root)
        watch.close()
        self._ended.open()

    def _look(self) -> None:
        self.adopt_all()
        self.settle()
        try:
            # The wall clock is used, not the store's clock, because the time is compared with times of files.
            sweep(self.folder, wall_clock(), self._config.inbox_leftovers_retention_ms)
            self._reported.over("left-overs")
        except OSError as error:
            if self._reported.is_new("left-overs", error):
                log.warning("what dead stagers left in %s can't be removed: %s", self.folder.path, error)

    def adopt_all(self) -> None:
        """Adopt all sealed manifests, in the order of their sealing.

        A manifest that can't be adopted is reported, and the next manifests are tried. Unless its error is
        listed in `NEVER`, the manifest and the later manifests for its partitions wait for the next call.
        """
        stuck: set[Key] = set()
        with self._lock:
            for stem, _ in self.folder.stems():
                if self._context.closed:
                    return
                try:
                    self._adopt(stem, stuck)
                    if self._reported.over(stem):
                        log.info("%s is adopted, or refused, now", stem)
                except (SegstoreError, OSError) as error:
                    if self._reported.is_new(stem, error):  # each call tries again: log the error once
                        log.warning("%s can't be adopted now: %s", stem, error)
                    write_result(self.folder, stem, error)
                    self._wake_sealers()

    def settle(self) -> None:
        """Sync the segments that adoptions have joined from small staged files. A failed sync is logged. The
        next call tries the sync again, or the next open of the store makes the segments anew.
        """
        with self._lock:
            self._unsynced.settle()

    def waiting(self) -> list[str]:
        """Return the stems of the sealed manifests that are not adopted yet. Raises OSError."""
        return [stem for stem, _ in self.folder.stems()]

    def adopt(self, id_: str, files: Sequence[StagedFile]) -> Adoption:
        """Adopt staged files at once, without a sealed manifest. If this raises, the files are removed.
        Raises UnknownTopicOrPartitionError, StagedFilesError, RecordTooLargeError, InvalidRecordError,
        IdempotencyConflictError, StorageError, OSError.
        """
        adoption = apart(partial(self._adopt_now, id_, files), "segstore-adopt")
        self._context.scheduler.soon(self.settle)
        return adoption

    def _adopt_now(self, id_: str, files: Sequence[StagedFile]) -> Adoption:
        with self._lock:
            self._unsynced.settle()
            try:
                manifest = new_manifest(self.folder, id_, files)
                adoption = self._adopter.adopt(manifest)
                self.note(adoption)
            except BaseException:
                with suppress(OSError):  # `sweep` removes the files later
                    self.folder.remove_staged(files)
                raise
            try:
                self._clear(manifest)
            except OSError as error:
                log.warning("what is left of %s can't be removed now: %s", manifest.stem, error)
        return adoption

    def _adopt(self, stem: str, stuck: set[Key]) -> None:
        try:
            manifest = read_manifest(self.folder, stem)
        except StagedFilesError as error:
            self._refuse(stem, None, error)
            return
        except FileNotFoundError:
            return
        keys = {(file.topic, file.partition) for file in manifest.files}
        self._unsynced.settle()
        try:
            if keys & stuck and self._ids.find(manifest.id) is None:
                raise StorageError(f"what was sealed before for {sorted(keys & stuck)} can't be adopted now")
            self.note(self._adopter.adopt(manifest))
        except (SegstoreError, OSError) as error:
            if not self._context.files.exists(self.folder.manifest(stem)):
                return  # the sealer took the manifest back
            if isinstance(error, NEVER):
                self._refuse(stem, manifest, error)
                return
            stuck |= keys
            raise
        self._clear(manifest)

    def _clear(self, manifest: Manifest) -> None:
        """Remove the intent, the staged files and the manifest of an adoption (step 7 in the module `adopt`),
        but keep the staged files from which unsynced segments were joined. Raises OSError; the next
        `adopt_all` tries the removal again.
        """
        # The intent is removed first, because sealers wait for its removal, and the records are visible
        # already.
        self.folder.unlink(self.folder.intent(manifest.stem))
        self._wake_sealers()
        needed = self._unsynced.files(manifest.stem)
        self.folder.remove_staged(file for file in manifest.files if file not in needed)
        self.folder.unlink(self.folder.manifest(manifest.stem))

    def _refuse(
        self, stem: str, manifest: Manifest | None, error: SegstoreError, *, is_listed: bool = False
    ) -> None:
        """Move a manifest and its staged files to the quarantine, write the error to the result file, and
        wake the sealer. If `is_listed`, the damage is in `Store.mended` already, and is not added again.
        """
        if self._reported.is_new((stem,), error):  # log once: after an error below, `_refuse` is called again
            if isinstance(error, StagedFilesError) and not is_listed:
                aside = os.path.join(self.folder.quarantine, stem)
                self._context.report(self.folder.manifest(stem), str(error), f"refused, and moved to {aside}")
            else:
                log.warning("%s is refused: %s", stem, error)
        write_result(self.folder, stem, error)
        for file in () if manifest is None else manifest.files:
            if self.folder.is_stagers(file.stager):
                put_aside(self.folder, stem, self.folder.staged(file))
        put_aside(self.folder, stem, self.folder.manifest(stem))
        remove_earlier(self.folder, stem)
        if manifest is not None:
            self.folder.remove_staged(manifest.files)
        self._reported.over((stem,))
        self._wake_sealers()

    # --- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the watch, and wait until the adoption that is under way has ended. In a replicated store
        wait at most the `ending` seconds of `begin_with`. Manifests that are not adopted yet wait for the
        next open.
        """
        if self._watch is not None:
            self._watch.stop()
        if self._thread is not None and self._ending is not None:
            ending, self._ending = self._ending, 0.0  # a second close does not wait again
            if not self._ended.wait(ending):
                return
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            """An `adopt` that was under way has ended."""
