"""Checks the inbox, from which staged files are adopted (made part of the logs). Reports unfinished
adoptions, files that can't be adopted, and files that no process will use.

Files on disk are only read. Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterator

from segstore import names
from segstore.config import StoreConfig
from segstore.errors import CorruptCheckpointError, InvalidRecordError, RecordTooLargeError, StagedFilesError
from segstore.files import Files
from segstore.storage.context import wall_clock
from segstore.storage.finding import Finding
from segstore.storage.inbox.adopted_ids import damaged_lines, missing_ids, read_adoption
from segstore.storage.inbox.cleanup import leftovers
from segstore.storage.inbox.intent import read_intent
from segstore.storage.inbox.joined import all_joined
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import Manifest, read_manifest
from segstore.storage.inbox.verify import check_bytes, examine
from segstore.storage.meta.small_files import reason
from segstore.storage.meta.topics import TopicFiles

_NEXT = "an open for writing"


def check_inbox(files: Files, root: str) -> Iterator[Finding]:
    """Yield the findings on the inbox of a store at rest. In a store in use, the unfinished work of processes
    would cause findings.
    """
    folder = Folder(files, root)
    try:
        yield from _check_intents(folder)
        yield from _check_joined(folder)
        yield from _check_sealed(folder)
        yield from _check_left(folder)
    except OSError as error:
        yield Finding(error.filename or folder.path, None, None, f"can't be read: {error.strerror}")


def _check_intents(folder: Folder) -> Iterator[Finding]:
    for stem in folder.of_kind(names.INTENT):
        path = folder.intent(stem)
        try:
            intent = read_intent(folder, stem)
        except CorruptCheckpointError as error:
            yield Finding(path, None, None, reason(error))
            continue
        recorded = read_adoption(folder.files, folder.adopted, intent.id) is not None
        done = "finishes" if recorded else "undoes"
        yield Finding(path, None, None, f"the adoption of {intent.id!r} was begun: {_NEXT} {done} it")


def _check_joined(folder: Folder) -> Iterator[Finding]:
    damaged: list[CorruptCheckpointError] = []
    for joined in all_joined(folder, lambda _, error: damaged.append(error)):
        path = folder.joined(joined.stem)
        left = "makes it durable, and removes what it was joined of"
        yield Finding(path, None, None, f"what {joined.id!r} appended may not be synced: {_NEXT} {left}")
        for file in () if joined.durable else joined.files:
            try:
                check_bytes(folder.files, folder.staged(file), file)
            except StagedFilesError as error:
                yield Finding(folder.staged(file), None, None, str(error))
    for one in damaged:
        yield Finding(one.file, None, None, reason(one))


def _check_sealed(folder: Folder) -> Iterator[Finding]:
    for path in (folder.adopted, folder.adopted_copy):
        damaged = damaged_lines(folder.files, path)
        if damaged:
            message = f"{damaged} damaged lines are of no id: {_NEXT} takes them from the other copy"
            yield Finding(path, None, None, message)
    lost = missing_ids(folder.files, folder.adopted, folder.adopted_copy)
    if lost:
        message = f"{lost} ids are missing that are in the second copy: {_NEXT} takes them from there"
        yield Finding(folder.adopted, None, None, message)
    for stem, _ in folder.stems():
        path = folder.manifest(stem)
        try:
            manifest = read_manifest(folder, stem)
        except StagedFilesError as error:
            yield Finding(path, None, None, reason(error))
            continue
        waits = read_adoption(folder.files, folder.adopted, manifest.id) is None
        missing = [file.name for file in manifest.files if not folder.files.exists(folder.staged(file))]
        if missing and waits:
            yield Finding(path, None, None, f"{len(missing)} staged files are missing: {missing[0]}")
            continue
        wrong = list(_damaged(folder, manifest)) if waits else []
        yield from wrong
        done = "refuses" if wrong else "adopts"
        yield Finding(path, None, None, f"{manifest.id!r} is sealed and waits: {_NEXT} {done} it")


def _damaged(folder: Folder, manifest: Manifest) -> Iterator[Finding]:
    """Yield the findings on staged files whose topics exist, but which can't be made part of the logs. Raises
    OSError.
    """
    topics = TopicFiles(folder.files, folder.root).load()[0]
    for file in manifest.files:
        info, path = topics.get(file.topic), folder.staged(file)
        if info is not None and info.topic_id == file.topic_id:
            try:
                examine(folder.files, path, file, info.settings)
            except (StagedFilesError, RecordTooLargeError, InvalidRecordError) as error:
                yield Finding(path, None, None, str(error).removeprefix(path).lstrip(": "))


def _check_left(folder: Folder) -> Iterator[Finding]:
    retention_ms = StoreConfig().inbox_leftovers_retention_ms
    stagers, small = leftovers(folder, wall_clock(), retention_ms)
    gathered = [folder.gathered] if folder.files.exists(folder.gathered) else []
    for path in (*map(folder.stager, stagers), *small, *gathered):
        yield Finding(path, None, None, f"left by a process that is gone: {_NEXT} removes it")
    whose = [folder.owner(name) for name in folder.stagers() if folder.is_stagers(name)]
    for path in (*whose, *map(folder.result, folder.of_kind(names.RESULT))):
        if folder.files.exists(path) and not folder.files.is_file(path):
            yield Finding(path, None, None, "no regular file: it goes to the quarantine when its time comes")
