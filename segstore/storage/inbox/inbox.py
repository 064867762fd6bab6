"""Owns `.segstore/inbox/` on the side of the store's writer: settles what a crash left, adopts, sweeps.

On disk: through its parts; moves what can't be adopted to `.segstore/quarantine/<stem>/`.
Threads: `settle` at open; from `begin` on one of its own, which sleeps until a manifest is sealed, and one
for each `adopt`: an adoption runs in none that runs signal handlers. One lock is held while manifests are
adopted, so that they are adopted one after the other, in order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from segstore import names
from segstore._native import descriptors, lib
from segstore.config import StoreConfig
from segstore.errors import (
    CorruptCheckpointError,
    SegstoreError,
    StagedFilesError,
    StorageError,
)
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.context import Context, wall_clock
from segstore.storage.inbox.adopt import Adopter
from segstore.storage.inbox.adopted_ids import AdoptedIds, Adoption
from segstore.storage.inbox.cleanup import put_aside, remove_earlier, sweep
from segstore.storage.inbox.intent import read_intent, remove_intent, undo
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import Manifest, new_manifest, read_manifest, write_result
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.log.partition import Partition
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.told import Told
from segstore.threads import Background, Latch, apart, others_are_gone

# --- watch -------------------------------------------------------------------------------------

# Tells when a file is renamed into a directory, without asking again and again (inotify).
#
# On disk: nothing. Threads: one waits; any may stop it. Where the system has no watch left for this user,
# waiting is a look every 50 ms.

_LOOK = 0.05  # seconds
_NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOSYS, errno.EPERM})


class Watch:
    """Of one directory, which is there."""

    def __init__(self, directory: str) -> None:
        """OSError."""
        self._stopped = Latch()
        self._slot = descriptors()
        code = lib.seg_watch(self._slot, os.fsencode(directory))
        if code < 0:
            if -code not in _NONE_LEFT:
                raise OSError(-code, os.strerror(-code), directory)
            why = os.strerror(-code)
            log.warning("%s can't be watched (%s): it is looked at every 50 ms", directory, why)
        self._fd = self._slot[0]  # below 0: there is no watch

    def wait(self, seconds: float) -> bool:
        """Whether there may be news, or it was stopped, within so long. It may return early."""
        if self._fd < 0:
            return self._stopped.wait(min(seconds, _LOOK)) or True
        found = lib.seg_watch_wait(self._fd, int(min(seconds * 1000, 2**31 - 1)))
        if found < 0:
            raise OSError(-found, os.strerror(-found))
        return bool(found)

    @property
    def stopped(self) -> bool:
        return self._stopped.is_open

    def stop(self) -> None:
        """Let `wait` return, the one that is under way or the next."""
        self._stopped.open()
        if self._fd >= 0:
            lib.seg_watch_stop(self._fd)

    def close(self) -> None:
        """Once nobody waits any more."""
        self._fd = -1
        lib.seg_close(self._slot)


# --- inbox ------------------------------------------------------------

log = Logger("segstore")
Key = tuple[str, int]


class Inbox:
    """`nudge` wakes those who wait for a publication."""

    def __init__(
        self,
        context: Context,
        config: StoreConfig,
        topics: Callable[[], Mapping[str, TopicInfo]],
        partition: Callable[[str, int], Partition],
        nudge: Callable[[], None],
    ) -> None:
        """OSError."""
        self._context, self._config, self._topics, self._nudge = context, config, topics, nudge
        self._folder = Folder(context.files, context.root, context.tell)
        self._folder.prepare()
        # What goes on failing is told once: why a stem, by its name, can't be adopted now; (stem,): why it is
        # refused; "left-overs" and "looking".
        self._told = Told()
        self._make_way()
        self._ids = AdoptedIds(
            context.files,
            self._folder.adopted,
            config.inbox_ids_retention_ms,
            config.inbox_ids_retention_count,
        )
        for wrong in self._ids.wrong:
            context.tell(*wrong)
        self._adopter = Adopter(
            self._folder, self._ids, topics, partition, context.clock, config.inbox_segment_bytes, nudge
        )
        self._lock = Mutex()
        self._thread: Background | None = None
        self._looked = Latch()  # at what waited when the store was opened
        self._failed: BaseException | None = None
        self._watch: Watch | None = None

    # --- opening ----------------------------------------------------------------------------

    def _make_way(self) -> None:
        """What is no file in the place of the adopted ids goes to the quarantine; the other copy has them."""
        for path in (self._folder.adopted, self._folder.adopted_copy):
            aside = self._context.make_way(path)
            if aside:
                self._context.tell(path, "not a regular file", f"made anew from the other copy{aside}")

    def settle(self) -> set[Key]:
        """Undo what was begun, before a partition is opened: the partitions of what is to be finished, which
        is in their logs, and is to be published at once. OSError.
        """
        finished: set[Key] = set()
        for stem in self._folder.of_kind(names.INTENT):
            try:
                intent = read_intent(self._folder, stem)
            except CorruptCheckpointError as error:
                self._give_up(stem, error)
                continue
            if self._ids.find(intent.id) is None:
                undo(self._context.files, self._context.root, self._topics(), intent.places)
                remove_intent(self._folder, stem)
            else:
                finished |= {
                    (place.topic, place.partition)
                    for place in intent.places
                    if place.topic in self._topics()
                    and self._topics()[place.topic].topic_id == place.topic_id
                }
        return finished

    def _give_up(self, stem: str, error: CorruptCheckpointError) -> None:
        """What an intent is about is not known. Its bytes were synced before its name was given: this is no
        crash's work. What its manifest names may be in the logs, in part or whole: it is not adopted again,
        and whoever sealed it is told. OSError.
        """
        path = self._folder.intent(stem)
        put_aside(self._folder, stem, path)
        self._context.tell(path, error.reason, f"moved to {os.path.join(self._folder.quarantine, stem)}")
        try:
            manifest = read_manifest(self._folder, stem)
        except (StagedFilesError, FileNotFoundError):
            return  # a damaged one is refused when it is looked at, a missing one can't be adopted
        if self._ids.find(manifest.id) is None:
            reason = (
                f"the adoption of {manifest.id!r} was begun, and {path}, which says what was appended, is "
                "damaged: look for its records before they are sealed again"
            )
            self._refuse(stem, manifest, StagedFilesError(reason), told=True)

    def begin(self) -> None:
        """Adopt what waits, and from now on whatever is sealed. OSError."""
        self._folder.remove_gathered()
        self._watch = Watch(self._folder.sealed)  # first: what is sealed meanwhile is an event
        for stem in self._folder.of_kind(names.INTENT):
            if not self._context.files.exists(self._folder.manifest(stem)):
                self._folder.unlink(self._folder.intent(stem))
        if others_are_gone():  # the interpreter ends: what is sealed later is the next open's
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
            del failed  # its traceback has this frame

    # --- adopting ---------------------------------------------------------------------------

    def _run(self) -> None:
        watch = self._watch
        assert watch is not None
        try:
            self._look()
        except BaseException as error:
            self._failed = error
            return
        finally:
            self._looked.open()
        while not watch.stopped:
            try:
                watch.wait(self._config.inbox_check_interval_ms / 1000)
                if not watch.stopped:
                    self._look()
                    self._told.over("looking")
            except Exception as error:
                if self._told.is_new("looking", error):
                    log.exception("the inbox of %s can't be looked at now", self._context.root)
        watch.close()

    def _look(self) -> None:
        self.adopt_all()
        try:
            # By the clock that stamps files, whatever the store's is.
            sweep(self._folder, wall_clock(), self._config.inbox_leftovers_retention_ms)
            self._told.over("left-overs")
        except OSError as error:
            if self._told.is_new("left-overs", error):
                log.warning("what dead stagers left in %s can't be removed: %s", self._folder.path, error)

    def adopt_all(self) -> None:
        """Adopt all that is sealed, in order. What can't be adopted is told, and blocks nothing; what the
        disk refuses stays for the next look, with all behind it for the same partitions.
        """
        stuck: set[Key] = set()
        with self._lock:
            for stem, _ in self._folder.stems():
                if self._context.closed:
                    return
                try:
                    self._adopt(stem, stuck)
                    if self._told.over(stem):
                        log.info("%s is adopted, or refused, now", stem)
                except OSError as error:
                    if self._told.is_new(stem, error):  # each look tries it again
                        log.warning("%s can't be adopted now: %s", stem, error)
                    write_result(self._folder, stem, error)
                    self._nudge()

    def adopt(self, id_: str, files: Sequence[StagedFile]) -> Adoption:
        """Adopt what was not sealed: now, or never. The errors of `Adopter.adopt`; the files are gone."""
        return apart(partial(self._adopt_now, id_, files), "segstore-adopt")

    def _adopt_now(self, id_: str, files: Sequence[StagedFile]) -> Adoption:
        with self._lock:
            try:
                manifest = new_manifest(self._folder, id_, files)
                adoption = self._adopter.adopt(manifest)
            except BaseException:
                with suppress(OSError):  # they are left-overs then
                    self._folder.remove_staged(files)
                raise
            try:
                self._adopter.clear(manifest)
            except OSError as error:
                log.warning("what is left of %s can't be removed now: %s", manifest.stem, error)
        return adoption

    def _adopt(self, stem: str, stuck: set[Key]) -> None:
        try:
            manifest = read_manifest(self._folder, stem)
        except StagedFilesError as error:
            self._refuse(stem, None, error)
            return
        except FileNotFoundError:
            return
        keys = {(file.topic, file.partition) for file in manifest.files}
        try:
            if keys & stuck and self._ids.find(manifest.id) is None:
                raise StorageError(f"what was sealed before for {sorted(keys & stuck)} can't be adopted now")
            self._adopter.adopt(manifest)
        except OSError:
            stuck |= keys
            raise
        except SegstoreError as error:
            self._refuse(stem, manifest, error)
            return
        self._adopter.clear(manifest)

    def _refuse(
        self, stem: str, manifest: Manifest | None, error: SegstoreError, *, told: bool = False
    ) -> None:
        """It goes to the quarantine with its files, and the sealer is told. `told`: the damage that is the
        reason is in `Store.mended` already. OSError.
        """
        if self._told.is_new((stem,), error):  # what can't be put aside is refused at each look
            if isinstance(error, StagedFilesError) and not told:
                aside = os.path.join(self._folder.quarantine, stem)
                self._context.tell(self._folder.manifest(stem), str(error), f"refused, and moved to {aside}")
            else:
                log.warning("%s is refused: %s", stem, error)
        write_result(self._folder, stem, error)
        for file in () if manifest is None else manifest.files:
            if self._folder.is_stagers(file.stager):
                put_aside(self._folder, stem, self._folder.staged(file))
        put_aside(self._folder, stem, self._folder.manifest(stem))
        remove_earlier(self._folder, stem)
        if manifest is not None:
            self._folder.remove_staged(manifest.files)
        self._told.over((stem,))
        self._nudge()

    # --- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for the adoption that is under way; the others wait for the next open."""
        if self._watch is not None:
            self._watch.stop()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            """What `adopt` has begun has ended."""
