"""`verify`: reads every object that an archive names, and checks sizes, CRCs and batches.

`contents.named_objects` lists the objects to check. `verify_objects` checks some of these objects, also in
other processes and on other machines. Nothing is on disk, and the archive is only read. Threads: any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from segstore._native import lib
from segstore.archiving.contents import ArchiveContents, LogBounds, NamedObject, NamedRange, named_objects
from segstore.archiving.downloads import Progress, ReadableObjects, read_range, spread
from segstore.archiving.object_names import CLAIMS, COMMITS, TOPICS
from segstore.archiving.remote import RemoteFiles
from segstore.errors import CorruptArchiveError
from segstore.files import Files
from segstore.records import LEAST_ENTRY, scan
from segstore.storage.finding import Finding
from segstore.storage.segment.batch_scan import BAD

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


Check = Callable[[RemoteFiles, Collection[NamedObject], Progress], list[Finding]]


class Verified(NamedTuple):
    """The result of `verify`. `objects` is the number of checked objects, and `bytes` is the number of bytes
    that were read. `unnamed` is the number of objects that no state names any more, or that no state names
    yet. Unnamed objects are no fault.
    """

    findings: list[Finding]
    objects: int
    bytes: int
    unnamed: int


def verify(
    uri: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    filesystem: FileSystem | None = None,
    files: Files | None = None,
    check: Check | None = None,
) -> Verified:
    """Read every object that is named by the newest state of the archive at `uri`, or by a state of one of
    its earlier histories. Check sizes, CRC-32Cs, and that logs are valid batches with rising offsets.

    A `Finding` has the name of an object as its path. `progress` is called with numbers of read bytes.
    `filesystem` is used instead of the URI's file system. An archiver may be running: objects that it removes
    during the check are no findings. `check` replaces `verify_objects`.

    Raises InvalidArgumentError, and ArchiveError if there is no archive, or it can't be reached.
    """
    remote = RemoteFiles(uri, filesystem, files or Files())
    there = {name: size for kind in (CLAIMS, COMMITS, TOPICS) for name, size in remote.list(kind).items()}
    contents = named_objects(remote)
    findings, read = list(contents.findings), 0

    def count(size: int) -> None:
        nonlocal read
        read += size
        if progress is not None:
            progress(size)

    for each in contents.objects.values():
        size = there.get(each.object, each.size)
        if 0 <= each.size < size:
            findings.append(Finding(each.object, None, None, f"it has {size} bytes, not {each.size}"))
    findings += (check or verify_objects)(remote, list(contents.objects.values()), count)
    if findings:
        findings = _still_named(findings, contents, named_objects(remote))
    unnamed = [name for name in there if name not in contents.objects and not name.startswith(CLAIMS)]
    return Verified(findings, len(contents.objects), read, len(unnamed))


def _still_named(findings: Iterable[Finding], before: ArchiveContents, now: ArchiveContents) -> list[Finding]:
    """Return the findings on objects that the archive still names."""
    gone = before.objects.keys() - now.objects.keys()
    found = [each for each in findings if each.path not in gone]
    return sorted(found, key=lambda it: (it.path, -1 if it.position is None else it.position))


def verify_objects(
    source: ReadableObjects, objects: Collection[NamedObject], progress: Progress | None = None
) -> list[Finding]:
    """Check some objects, several objects at the same time, and return the findings. Raises ArchiveError if
    the archive can't be reached.
    """
    findings: list[Finding] = []

    def check(each: NamedObject, buffer: bytearray, report: Progress) -> None:
        for one in each.ranges:
            findings.extend(_verify_range(source, one, buffer, report))

    spread(objects, check, progress or (lambda _: None))
    return findings


def _verify_range(
    source: ReadableObjects, one: NamedRange, buffer: bytearray, report: Progress
) -> list[Finding]:
    wanted, bounds = one
    log = None if bounds is None else BatchCheck(wanted.object, wanted.at, bounds)

    def take(data: memoryview) -> None:
        if log is not None:
            log.take(data)
        report(len(data))

    found: list[Finding] = []
    try:
        if wanted.length:
            read_range(source, wanted, buffer, take)
        else:
            source.read_into(wanted.object, 0, bytearray(1))  # the object must exist
        if log is not None:
            log.end()
    except FileNotFoundError:
        found.append(Finding(wanted.object, None, None, "it is missing"))
    except CorruptArchiveError as error:
        found.append(Finding(error.object, None, None, error.reason))
    return found + (log.findings if log is not None else [])


class BatchCheck:
    """Checks the batches of a log. The log's bytes are passed to `take`, part by part. `findings` has the
    first damage. `at` is the byte of the object at which the log begins.
    """

    def __init__(self, name: str, at: int, bounds: LogBounds) -> None:
        self._name, self._at, self._bounds, self._next = name, at, bounds, bounds.first
        self._left, self._need = b"", 0
        self.findings: list[Finding] = []

    def take(self, data: memoryview) -> None:
        """Take the next bytes of the log, and check the batches that they complete."""
        if self.findings:
            return
        self._left += data
        if len(self._left) >= self._need:
            self._scan()

    def end(self) -> None:
        """Check that the last batch is complete."""
        if self._left and not self.findings:
            self._add_finding(self._at, "the log ends within a batch")

    def _scan(self) -> None:
        batches, stop = scan(self._left, self._at, least=self._next)
        if len(batches):
            self._check_offsets(int(batches["base_offset"][0]), stop.last_offset)
            self._next = stop.last_offset + 1
        if stop.status in BAD and stop.status != lib.SEG_SHORT:
            self._add_finding(stop.position, f"no valid batch: {BAD[stop.status]}")
        self._left = self._left[stop.position - self._at :]
        self._at = stop.position
        self._need = max(stop.need, LEAST_ENTRY) if stop.status == lib.SEG_SHORT else 0

    def _check_offsets(self, first: int, last: int) -> None:
        if first < self._next:
            self._add_finding(self._at, f"offset {first}: the batch before it ends at {self._next - 1}")
        elif last >= self._bounds.end:
            self._add_finding(self._at, f"offset {last} is not below {self._bounds.end}")

    def _add_finding(self, position: int, message: str) -> None:
        if not self.findings:
            self.findings.append(Finding(self._name, position, self._next, message))
