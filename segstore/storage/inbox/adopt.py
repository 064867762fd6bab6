"""Adopts one sealed manifest (a list of staged files) in a store without replicas: all records of the files
are appended once, or none is.

1. The id is looked up. If a manifest with this id was adopted, this manifest is not adopted; it is refused if
   it can't have the same records. Topics, partitions and every staged file are checked. Small files are
   joined. Large files get the offsets that the partition would assign now. The joined and the large files are
   synced, and so are the records that the partitions have already. Other callers may append in this step.
2. The append tokens (the locks of the partitions' appends) are taken, in the order of the partitions'
   directories. The intent, which has the end of each log, is written and synced. A note (`joined`) of the
   segments that are joined from small files is written and synced, too.
3. The batches are appended to the logs.
4. The logs are synced, except for joined segments: recovery can join them again, because the staged files
   that the note names are on disk.
5. The id is recorded with the offsets of the records, and synced. An adoption that fails before this sync is
   undone. After this sync the adoption will be finished, by this process or by recovery at the next open.
6. The ends of all partitions are published together. The tokens are released.
7. Intent, staged files and manifest are removed (`Inbox`); files that a note names are removed only after the
   segments joined from them are synced.

If a step up to 5 fails, the id is forgotten, the logs are truncated to their old ends, durably, and the
intent is removed. If this undo fails, too, the partitions are fenced (they take no appends), and the intent
stays for the next open.

An append that follows the adoption can't be acknowledged while the adoption may still be undone. So the
append tokens are held during the syncs; no other part of the engine syncs with a token held. Threads: one at
a time, and never a thread that runs signal handlers, because a handler's exception would end the adoption
half-way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from segstore.errors import StagedFilesError, StoreClosedError, UnknownTopicOrPartitionError, first_of
from segstore.files import Files
from segstore.logger import Logger
from segstore.storage.inbox.adopt_partition import PartitionAdoption
from segstore.storage.inbox.adopted_ids import AdoptedIds
from segstore.storage.inbox.gatherer import Gatherer
from segstore.storage.inbox.intent import Intent, LogOffsetMetadata, remove_intent, write_intent
from segstore.storage.inbox.joined import JoinNote, forget_joined, write_joined
from segstore.storage.inbox.known_ids import Adoption, check_again
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import Manifest
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.log.partition import Partition
from segstore.storage.log.visibility import Visible
from segstore.storage.meta.topics import TopicInfo, find_topic
from segstore.threads import Worker, holding

log = Logger("segstore")
_AT_A_TIME = 4


class Adopter:
    """Adopts manifests (appends the records of their staged files) in one store. `segment_bytes` is
    `StoreConfig.inbox_segment_bytes`. `unsynced` is called with a JoinNote of the segments that must be
    synced later.
    """

    def __init__(
        self,
        folder: Folder,
        ids: AdoptedIds,
        topics: Callable[[], Mapping[str, TopicInfo]],
        partition: Callable[[str, int], Partition],
        clock: Callable[[], int],
        segment_bytes: int,
        unsynced: Callable[[JoinNote], None],
    ) -> None:
        self._folder, self._ids, self._topics, self._partition = folder, ids, topics, partition
        self._files: Files = folder.files
        self._clock, self._segment_bytes, self._unsynced = clock, segment_bytes, unsynced

    def adopt(self, manifest: Manifest) -> Adoption:
        """Adopt a manifest (steps 1 to 6), and return its adoption, or the earlier adoption of its id.

        If the manifest can never be adopted, raises UnknownTopicOrPartitionError, StagedFilesError,
        RecordTooLargeError, InvalidRecordError or IdempotencyConflictError. If it can't be adopted now,
        raises StorageError or OSError.
        """
        known = self._ids.find(manifest.id)
        if known is not None:
            check_again(known, manifest.records, manifest.source)
            return known
        try:
            return self._adopt(manifest)
        except StoreClosedError as error:
            raise UnknownTopicOrPartitionError(f"a topic was deleted meanwhile: {error}") from error

    def _adopt(self, manifest: Manifest) -> Adoption:
        with Gatherer(self._folder) as gatherer:
            work = self._of_partitions(manifest)
            _each(lambda one: one.prepare(gatherer), work)
            tokens = [one.partition.token for one in work]
            return holding(tokens, lambda: self._write(manifest, work))

    # --- step 1 -----------------------------------------------------------------------------

    def _of_partitions(self, manifest: Manifest) -> list[PartitionAdoption]:
        staged: dict[tuple[str, int], list[StagedFile]] = {}
        for file in manifest.files:
            check_staged(self._folder, self._topics(), file)
            staged.setdefault((file.topic, file.partition), []).append(file)
        work = [
            PartitionAdoption(self._partition(*key), files, self._folder, self._segment_bytes)
            for key, files in staged.items()
        ]
        return sorted(work, key=lambda one: one.partition.directory)

    # --- steps 2 to 6 -----------------------------------------------------------------------

    def _write(self, manifest: Manifest, work: Sequence[PartitionAdoption]) -> Adoption:
        places = [one.place() for one in work]
        joined = _joined(manifest, work)
        try:
            if places:
                write_intent(self._folder, Intent(manifest.stem, manifest.id, tuple(places)))
            self._check_sealed(manifest)
            # The note is written before `append` gives the segments their names, because a background sync of
            # the named segments would delay the note's sync.
            if joined.segments:
                write_joined(self._folder, joined)
            for one in work:
                one.append()
            joined = self._rewrite_note(joined, _joined(manifest, work))
            _each(lambda one: one.sync(), work)
            offsets = {(one.topic.topic, one.topic.partition): one.offsets for one in work}
            adoption = Adoption(manifest.id, self._clock(), offsets, source=manifest.source)
            self._ids.record(adoption)
        except BaseException:
            self._undo(manifest, work, places)
            raise
        for one in work:
            one.appended()
        Visible.show_all([one.partition.visible for one in work])
        if joined.segments:
            self._unsynced(joined)
        return adoption

    def _check_sealed(self, manifest: Manifest) -> None:
        """Raise StagedFilesError if the manifest was taken back (`SealedManifest.take_back`)."""
        # This is called after the intent was written. `take_back` first removes the manifest, then looks for
        # the intent. So `take_back` finds the intent, or this method finds that the manifest is gone.
        if manifest.is_sealed and not self._files.exists(self._folder.manifest(manifest.stem)):
            raise StagedFilesError(f"{manifest.id!r} was taken back")

    def _rewrite_note(self, noted: JoinNote, joined: JoinNote) -> JoinNote:
        """If `joined` differs from the written note `noted`, because some files could not become segments,
        replace the written note, or remove it if no segment is left. Return `joined`.
        """
        if joined != noted:
            forget_joined(self._folder, noted.stem)
            if joined.segments:
                write_joined(self._folder, joined)
        return joined

    def _undo(
        self, manifest: Manifest, work: Sequence[PartitionAdoption], places: Sequence[LogOffsetMetadata]
    ) -> None:
        try:
            # The id is forgotten first, because no log may be truncated while the id is recorded as adopted.
            if self._ids.find(manifest.id) is not None:
                self._ids.forget(manifest.id)
            for one in reversed(work):
                one.put_back()
            # The note is removed before the intent: if recovery finds a note without an intent, it joins the
            # note's files again.
            forget_joined(self._folder, manifest.stem)
            not_undone = [place for one, place in zip(work, places, strict=True) if not one.undone]
            if not_undone:
                write_intent(self._folder, Intent(manifest.stem, manifest.id, tuple(not_undone)))
            else:
                remove_intent(self._folder, manifest.stem)
        except OSError as error:
            log.error("%s can't be undone: its partitions are fenced until the next open", manifest.stem)
            for one in work:
                one.fence(error)


def _joined(manifest: Manifest, work: Sequence[PartitionAdoption]) -> JoinNote:
    return JoinNote(manifest.stem, manifest.id, tuple(segment for one in work for segment in one.joined))


def check_staged(folder: Folder, topics: Mapping[str, TopicInfo], file: StagedFile) -> None:
    """Raise UnknownTopicOrPartitionError if the topic or partition of a file was deleted, and
    StagedFilesError if the directory of the file's stager is missing or a link. Raises OSError.
    """
    info = find_topic(topics, file.topic, file.partition)
    if info.topic_id != file.topic_id:
        raise UnknownTopicOrPartitionError(
            f"topic {file.topic!r} was deleted since its records were staged: its id was "
            f"{file.topic_id or 'none'}, and that of the topic that is there is {info.topic_id or 'none'}"
        )
    if not folder.is_stagers(file.stager):
        raise StagedFilesError(f"{folder.stager(file.stager)} is missing, or a link")


def _each(do: Callable[[PartitionAdoption], None], work: Sequence[PartitionAdoption]) -> None:
    """Call `do` for each partition, in several threads. When all calls have ended, raise the error of the
    first partition that failed.
    """
    # Several syncs at the same time take less time than the same syncs one after the other.
    turns, failed = iter(enumerate(work)), {}

    def take_turns() -> None:
        for number, one in turns:
            try:
                do(one)
            except BaseException as error:
                failed[number] = error

    _together(take_turns, min(len(work), _AT_A_TIME))
    errors = [failed[number] for number in sorted(failed)]
    failed.clear()
    if errors:
        raise first_of(errors)


def _together(run: Callable[[], None], threads: int) -> None:
    """Call `run`, which raises nothing, in this thread and in `threads - 1` other threads, and wait until
    each call has returned.
    """
    # concurrent.futures is not used: after the main thread has exited, its import fails, and executors refuse
    # work.
    workers: list[Worker] = []
    try:
        for _ in range(1, threads):
            worker = Worker("segstore-inbox")
            worker.start()
            worker.do(run)
            workers.append(worker)
        run()
    finally:
        for worker in workers:
            worker.result()
            worker.end()
