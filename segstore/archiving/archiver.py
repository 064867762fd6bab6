"""`Archiver`: copies a store into an archive, by calls of `tick`. The archiver with the highest claim is the
archive's only writer.

`tick` reads the ends of all logs at one moment, uploads the sealed segments that must be in the archive
before the commit, and writes one commit with pieces of all logs that have grown. Then it checks that the
archiver's claim is still the highest. All records of that moment are in the archive when `tick` returns.
Segments, lists, commits and states are written to the archive. The store's files are only read. Threads: one,
and those of `Uploads`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic

from segstore.archiving.changed import changed_files, changed_topics
from segstore.archiving.claim import WritableObjects, check_claim
from segstore.archiving.committing import CommitWriter
from segstore.archiving.comparing import same_epochs_end
from segstore.archiving.counts import ArchiverCounts
from segstore.archiving.draft import Carried, CommitDraft, NewList
from segstore.archiving.flights import UploadsUnderWay
from segstore.archiving.moment import Moment, Moments
from segstore.archiving.object_names import (
    COMMIT,
    STATE,
    ArchiverClaim,
    CommitName,
    TopicIdPartition,
    parse_claim_object,
    parse_partition_object,
    upload,
)
from segstore.archiving.partition_archive import PartitionArchive
from segstore.archiving.plan import PartitionPlan, current_segments, plan_partition, retired
from segstore.archiving.retention import ArchiveRetention
from segstore.archiving.salvage import salvage
from segstore.archiving.segment_list import SegmentList
from segstore.archiving.settings import ArchiveSettings
from segstore.archiving.state import ArchivedPartition, state_of
from segstore.archiving.taking_over import take_over
from segstore.archiving.trash import ListedObjects, Trash, list_all, needed_by, own_objects, segment_objects
from segstore.archiving.uploads import Done, SealedSegment, Uploads, upload_segment
from segstore.errors import (
    ArchiveError,
    ArchiveFencedError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.logger import Logger
from segstore.storage.meta.published_ends import Ends

log = Logger("segstore")

COMMITS_A_STATE = 64
AT_ONCE = 1 << 30
"""At most this many bytes of segments are uploaded before a commit. Further segments are uploaded before the
next commits.
"""
_LOOK = 10.0
"""Seconds between two checks of the archiver's claim while no commit is written."""
_TRIES = 100
_STARTS = 1000


class WentAnotherWayError(ArchiveError):
    """The store's log differs from the archived log, so a new Archiver must compare them (`take_over`)."""


class Archiver:
    """Writes an archive. The constructor calls `take_over`, and raises the errors of that function."""

    def __init__(
        self,
        objects: WritableObjects,
        moments: Moments,
        settings: ArchiveSettings,
        counts: ArchiverCounts,
        again: Callable[[Exception], bool],
        most_at_once: int = AT_ONCE,
    ) -> None:
        """`again` is called with the error if a commit could not be written. `again` waits, and returns
        whether the commit must be written again.
        """
        self._objects, self._moments, self._settings = objects, moments, settings
        self._counts, self._again, self._most = counts, again, most_at_once
        self._uploads = Uploads(settings.uploads, "segstore-archive-upload")
        self._beside = Uploads(max(settings.uploads // 2, 1), "segstore-archive-beside")
        try:
            taken = take_over(objects, moments, self._uploads)
        except BaseException:
            self.close()
            raise
        self.claim, self.state, self.partitions = taken.claim, taken.state, taken.partitions
        counts.ways += len(taken.went_other_ways)
        counts.states += 1
        self._numbers = 0
        self._commits = 0
        self._looked = monotonic()
        self._listed: SimpleQueue[Done[ListedObjects]] = SimpleQueue()
        self.flights = UploadsUnderWay(objects, moments.files, self._beside, counts)
        self._trash = Trash(objects, self.claim, settings.grace_ms, counts)
        self._retention = ArchiveRetention(settings)
        self._last_state = self.state.name
        self._commit_names: set[str] = {str(self.state.name)}
        if not self.state.ways:
            self._trash.keep(())
        self.is_uncertain = False
        """Whether a write that failed may have made a commit. If so, a new Archiver must replace this one."""
        self.carried: Moment | None = None
        """The last moment whose records are all archived; None before the first `tick`."""
        self.problems: dict[TopicIdPartition, str] = {}
        """For each partition that the last `tick` could not archive: the reason."""
        self._unreadable = set[TopicIdPartition]()

    def close(self) -> None:
        """Stop the threads."""
        self._uploads.close()
        self._beside.close()

    # --- a tick -----------------------------------------------------------------------------------

    def tick(self, look: bool = False) -> None:
        """Archive the store as it is at a moment after this call has begun. If no commit is written, the
        archiver's claim is checked only if `look` is True, or if the last check is some seconds old. Raises
        ArchiveFencedError, ArchiveError, WentAnotherWayError, OSError.
        """
        self.flights.land(self.partitions)
        for left in reversed(range(_TRIES)):
            try:
                moment = self._carry(look)
                break
            except FileNotFoundError:  # compaction or retention has just removed a segment
                if not left or self.is_uncertain:
                    raise
        self.carried = moment
        self._note_unreadable(moment)
        self._clean(moment)

    def _carry(self, look: bool) -> Moment:
        while True:
            moment, plans = self._planned()
            first = [each for plan in plans for each in plan.first]
            chosen = self._first_of_a_commit(first)
            self._upload(chosen, moment.time)
            whole = len(chosen) == len(first)
            if not whole:
                plans = [plan for plan in plans if _is_advanced(plan, chosen)]
            written = self._commit(moment, plans, whole)
            if whole:
                break
        if not written and (look or monotonic() - self._looked >= _LOOK):
            self._check()
        self._begin_later_uploads(plans, moment.time)
        return moment

    def _check(self) -> None:
        check_claim(self._objects, self.claim)
        self._looked = monotonic()

    def _planned(self) -> tuple[Moment, list[PartitionPlan]]:
        """Return a moment, and a plan for each partition that has changed. The plan is made from the segments
        that the log has at this moment.
        """
        for _ in range(_TRIES):
            moment = self._moments.take()
            changed = self._changed(moment)
            plans = [plan for key in changed if (plan := self._plan(key, moment.ends[key]))]
            slots = {plan.key: self._moments.slots[plan.key] for plan in plans}
            now = self._moments.ends_now(slots) if slots else {}
            if all(key in now and now[key].layout == moment.ends[key].layout for key in slots):
                return moment, plans
        raise ArchiveError(f"{self._moments.store.path}: its segments are replaced again and again")

    def _changed(self, moment: Moment) -> list[TopicIdPartition]:
        known = self.partitions
        found: list[TopicIdPartition] = []
        for key, ends in moment.ends.items():
            each = known.get(key)
            if each is None:
                known[key] = PartitionArchive(key, SegmentList(key))
            elif each.ends == ends and not each.ready:
                continue
            found.append(key)
        return found

    def _plan(self, key: TopicIdPartition, ends: Ends) -> PartitionPlan | None:
        each, had = self.partitions[key], self.state.partitions.get(key)
        try:
            view = self._moments.view(key)
            self._look_at_epochs(each, ends, had)
        except (StoreClosedError, UnknownTopicOrPartitionError):
            return None  # the topic was deleted after `_moments.take()`; the next `tick` does not see it
        pieces = had.pieces if had is not None else ()
        plan = plan_partition(key, view, ends, each.listed, pieces, each.inodes, each.ready)
        later = (one for one in plan.later if (one.local.base_offset, one.source) not in each.flying)
        return plan._replace(later=tuple(later))

    def _look_at_epochs(self, each: PartitionArchive, ends: Ends, had: ArchivedPartition | None) -> None:
        """Read the leader epochs of a log if the log has a new epoch, or ends earlier than the archived log.
        Raises WentAnotherWayError if the log ends earlier than the archived log, or has other epochs below
        the archive's end.
        """
        shorter = had is not None and ends.end < had.end
        if each.epoch == ends.epoch and ends.epoch >= 0 and not shorter:
            return
        found = self._moments.epochs(each.key)
        each.epochs = found
        is_settled = bool(found) and found[-1][0] >= ends.epoch
        each.epoch = ends.epoch if is_settled else None
        if had is not None:
            written = self._moments.follower(each.key).written()
            common = same_epochs_end(had, found, written)
            if common < had.end:
                raise WentAnotherWayError(f"{each.key}: the log is another one from offset {common} on")

    # --- segments ---------------------------------------------------------------------------------

    def _first_of_a_commit(self, first: list[SealedSegment]) -> list[SealedSegment]:
        """Return the first segments of `first` that may be uploaded before the next commit: together at most
        `most_at_once` bytes, but at least one segment.
        """
        size = 0
        found: list[SealedSegment] = []
        for each in first:
            if found and size + each.size > self._most:
                break
            found.append(each)
            size += each.size
        return found

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _upload(self, sealed: Iterable[SealedSegment], time: int) -> None:
        calls = [partial(self._uploaded, each, upload(self.claim, self._number()), time) for each in sealed]
        if calls:
            self._uploads.run(calls)

    def _uploaded(self, each: SealedSegment, name: str, time: int) -> None:
        made = upload_segment(self._objects, self._moments.files, each, name, time)
        self.partitions[each.key].ready[made.base, made.source] = made
        self._counts.segments += 1

    def _begin_later_uploads(self, plans: Iterable[PartitionPlan], time: int) -> None:
        """Begin the uploads that later calls of `tick` do not wait for."""
        for plan in plans:
            for each in plan.later:
                number = self._number()
                name = upload(self.claim, number)
                self.flights.begin(number, name, each, self.partitions[each.key], time)

    # --- a commit ---------------------------------------------------------------------------------

    def _commit(self, moment: Moment, plans: list[PartitionPlan], whole: bool) -> bool:
        """Write the changes as a commit, or the whole content as a state if a state is due, and return True.
        Return False, and write nothing, if there are no changes.
        """
        time = max(moment.time, self.state.time)
        due = self._retention.is_due(time)
        topics = changed_topics(self.state, moment, time, self._before())
        gone = self._retention.forgotten(self.state, time) if due else []
        dropped = self._retention.dropped(self.partitions, self.state, time, gone) if due else {}
        small = self._moments.small() if whole else {}
        files = changed_files(self.state, small, time)
        vanished = whole and not self.state.files.keys() <= small.keys()
        if not (topics or gone or files or vanished or dropped or plans):
            return False
        is_state = vanished or self._commits >= COMMITS_A_STATE
        name = CommitName(self.claim, self.state.name.sequence + 1, STATE if is_state else COMMIT)
        commit = CommitWriter(name, time)
        lists = self._new_lists(plans, dropped, time)
        draft = CommitDraft(self._moments, commit, self.state, self.partitions, lists, time)
        for plan in plans:
            draft.take(plan, whole)
        for key in lists.keys() - {plan.key for plan in plans}:
            draft.keep(key)
        if not (topics or gone or files or vanished or draft.has_entries):
            self._note_carried(draft)
            return False
        commit.topics, commit.files, commit.forgotten = topics, files, gone
        if is_state:
            ways = self._retention.kept_ways(self.state.ways, time)
            draft.finish_state(small if whole else None, ways, gone)
        else:
            draft.finish()
        self._write(commit, draft, is_state)
        return True

    def _before(self) -> int:
        """Return the time (ms) of the last moment that was archived, or 0 if none was archived yet."""
        if self.carried is not None:
            return self.carried.time
        return self.state.time if self.state.topics else 0

    def _new_lists(
        self, plans: Iterable[PartitionPlan], dropped: Mapping[TopicIdPartition, frozenset[str]], time: int
    ) -> dict[TopicIdPartition, NewList]:
        """Write the changed lists of segments, and return them."""
        found: dict[TopicIdPartition, SegmentList] = {}
        for plan in plans:
            listed = self._next_list(plan, dropped.get(plan.key, frozenset()), time)
            if listed is not None:
                found[plan.key] = listed
        for key in dropped.keys() - {plan.key for plan in plans}:
            listed = self.partitions[key].listed
            kept = (each for each in listed.segments if each.upload not in dropped[key])
            found[key] = listed.next_version(kept, listed.starts)
        made = {
            key: NewList(each, each.object(upload(self.claim, self._number()))) for key, each in found.items()
        }
        self._uploads.run(
            [partial(self._objects.write, each.name, [each.listed.to_bytes()]) for each in made.values()]
        )
        return made

    def _next_list(self, plan: PartitionPlan, dropped: frozenset[str], time: int) -> SegmentList | None:
        """Return the new list of a partition, or None if the list does not change."""
        listed, had = self.partitions[plan.key].listed, self.state.partitions.get(plan.key)
        current = current_segments(plan, listed, self.partitions[plan.key].ready)
        segments = retired(listed, current, plan, time)
        if plan.lost:
            name = lambda: upload(self.claim, self._number())  # noqa: E731
            since = had.moment if had is not None else time
            begins = plan.view.bases[0]
            segments += salvage(self._objects, plan.key, plan.lost, begins, name, since, time)
        segments = [each for each in segments if each.upload not in dropped]
        starts = _starts(listed, had, plan.start, time)
        made = listed.next_version(segments, starts)
        changed = made.segments != listed.segments or (len(starts) > 1 and starts != listed.starts)
        return made if changed else None

    def _write(self, commit: CommitWriter, draft: CommitDraft, is_state: bool) -> None:
        """Write a commit, check the claim, and update `state` to the archive's new content."""
        body, name = commit.body(), str(commit.name)
        self.is_uncertain = True
        while True:
            try:
                self._objects.write(name, body)  # the write may be repeated, because the bytes are the same
                self._check()
                break
            except ArchiveFencedError:
                raise
            except ArchiveError as error:
                if not self._again(error):
                    raise
        before = self.state.partitions
        if is_state:
            self.state = state_of(commit.header, commit.name, body.pieces_at)
        else:
            before = dict(before)
            self.state.apply(commit.header, commit.name, body.pieces_at)
        self._counts.states += is_state
        self._counts.commits += not is_state
        self._commits = 0 if is_state else self._commits + 1
        self._commit_names.add(name)
        self._note(draft, before, commit)
        self.is_uncertain = False
        if is_state:
            self._last_state = commit.name
            self._trash_old_commits(commit.time)

    def _note(
        self, draft: CommitDraft, before: Mapping[TopicIdPartition, ArchivedPartition], commit: CommitWriter
    ) -> None:
        """Keep the commit's new lists in memory, and add the replaced objects to the trash, which deletes
        them later.
        """
        for key, new in draft.lists.items():
            each, had = self.partitions[key], before.get(key)
            kept = {one.upload for one in new.listed.segments}
            if had is not None and had.segments is not None:
                self._trash.add([had.segments], commit.time)
            for one in each.listed.segments:
                if one.upload not in kept:
                    self._trash.add(segment_objects(key, one), commit.time)
            each.listed = new.listed
            each.ready = {mark: one for mark, one in each.ready.items() if one.upload not in kept}
        self._note_carried(draft)
        for key in before.keys() - self.state.partitions.keys():
            self._trash_partition(key, before[key], commit.time)

    def _note_carried(self, draft: CommitDraft) -> None:
        for key, carried in draft.carried.items():
            each = self.partitions[key]
            each.ends = carried.ends
            each.inodes = {base: inode for base, inode in carried.inodes.items() if base >= carried.least}
            self._trash_stale(each, carried)
            self.problems.pop(key, None)
            if carried.problem is not None:
                self.problems[key] = carried.problem

    def _note_unreadable(self, moment: Moment) -> None:
        """Add to `problems` the topics that are not archived because their settings can't be read."""
        now = {
            TopicIdPartition(info.name, info.topic_id, 0): f"{info.name}: {info.error}"
            for info in moment.topics.values()
            if info.error is not None
        }
        for key in self._unreadable - now.keys():
            self.problems.pop(key, None)
        self.problems |= now
        self._unreadable = set(now)

    def _trash_stale(self, each: PartitionArchive, carried: Carried) -> None:
        """Move uploads from `ready` to the trash if their segments have left the log."""
        stale = [mark for mark in each.ready if mark not in carried.marks]
        for mark in stale:
            self._trash.add(segment_objects(each.key, each.ready.pop(mark)), self.state.time)

    def _trash_partition(self, key: TopicIdPartition, had: ArchivedPartition, time: int) -> None:
        each = self.partitions.pop(key)
        for one in (*each.listed.segments, *each.ready.values()):
            self._trash.add(segment_objects(key, one), time)
        if had.segments is not None:
            self._trash.add([had.segments], time)
        self.problems.pop(key, None)

    # --- what is needed no more -------------------------------------------------------------------

    def _trash_old_commits(self, time: int) -> None:
        """Add old commits and states to the trash, except those that the newest state needs."""
        needed = {piece.object for each in self.state.partitions.values() for piece in each.pieces}
        needed.add(str(self._last_state))
        old = self._commit_names - needed
        self._trash.add(old, time)
        self._commit_names -= old

    def _clean(self, moment: Moment) -> None:
        """Delete objects whose grace time is over. If a list of all objects is due, a thread begins to read
        the list, and a later call uses it.
        """
        if self._trash.wants_list:
            call = partial(list_all, self._objects, self.state.ways)
            self._beside.begin(0, call, self._listed)
        with suppress(Empty):
            self._take_listed(self._listed.get_nowait(), moment.time)
        self._trash.sweep(moment.time)

    def _take_listed(self, done: Done[ListedObjects], time: int) -> None:
        if done.result is None:
            log.warning("what nothing needs of an archive is not known, and is not deleted: %s", done.error)
            return
        self._trash.keep(done.result.of_ways)
        lists = (each.listed for each in self.partitions.values())
        needed = needed_by(self.state, lists)
        needed |= own_objects(self.claim, self.state, self._last_state)
        claim, live = self.claim, self._live()
        self._trash.add(
            (name for name in done.result.found - needed if not _is_live(name, claim, live)), time
        )

    def _live(self) -> set[str]:
        """Return the ids of the uploads that are running, or whose segments are not in a list yet."""
        ready = {one.upload for each in self.partitions.values() for one in each.ready.values()}
        return ready | self.flights.names


def _starts(
    listed: SegmentList, had: ArchivedPartition | None, start: int, time: int
) -> tuple[tuple[int, int], ...]:
    """Return the log start offsets of a partition. If the last of them is not `start`, add (time, start)."""
    starts = listed.starts
    if not starts and had is not None:
        starts = ((had.moment, had.start),)
    if not starts or starts[-1][1] != start:
        starts = (*starts, (time, start))[-_STARTS:]
    return starts


def _is_live(name: str, claim: ArchiverClaim, uploads: set[str]) -> bool:
    """Return whether an object is of one of `uploads`, or is the object of `claim` or of a higher claim."""
    claimed = parse_claim_object(name)
    if claimed is not None:
        return claimed >= claim
    found = parse_partition_object(name)
    return found is not None and found.upload in uploads


def _is_advanced(plan: PartitionPlan, uploaded: list[SealedSegment]) -> bool:
    """Return whether the uploaded segments move the archive's end of a partition forward."""
    if plan.lost:
        # The commit drops the lost pieces, whose file has left the log. If the commit were written before all
        # segments that replace these pieces are uploaded, the archive's end would move back.
        return all(each in uploaded for each in plan.first)
    return bool(plan.first) and plan.first[0] in uploaded
