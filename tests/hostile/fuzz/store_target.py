"""A whole store one of whose files was changed: read, checked, opened for writing, appended to.

An input's first byte says which file of the template it is the content of; where its high bit is set the
store was not closed cleanly. On disk: stores in a temporary directory, removed with the process.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random

import memory
from stores import transact_and_consume

import segstore
from fuzz import batches
from fuzz.mutate import ANY, TEXT
from fuzz.target import Target
from segstore import names
from segstore.coordinator.offsets.topic import ReadOffsets
from segstore.coordinator.transaction.state_log import TransactionStateLog
from segstore.errors import SegstoreError
from segstore.storage.repair.repair import repair
from segstore.storage.staging import Stager, seal

_UNCLEAN = 0x80
_SMALL = {"segment.bytes": 1500, "index.interval.bytes": 100, "file.delete.delay.ms": 0}
_MOST_READS = 1000


@cache
def _work() -> tempfile.TemporaryDirectory[str]:
    return memory.directory()


@cache
def template() -> Path:
    """A closed store with something of everything."""
    root = Path(_work().name) / "template"
    config = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    with segstore.open(root, config=config) as store:
        store.create_topic("t", 2, config=_SMALL)
        log = store.partition("t", 0)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            log.append_batch([b"v%d" % i for i in range(60)], keys=[b"k"] * 60, compression=codec)
        log.delete_records(70)
        transact_and_consume(store)
        with Stager(root) as stager:
            stager.append_batch("t", 0, [b"staged"])
            seal(root, "q/1", [stager.finish()])
        store.sweep()
    return root


@cache
def _files() -> list[str]:
    root = template()
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def seeds() -> list[bytes]:
    """Each file as it is, of a store closed cleanly and of one that was not."""
    held = [(at, (template() / name).read_bytes()) for at, name in enumerate(_files())]
    return [bytes([at | flag]) + data for at, data in held for flag in (0, _UNCLEAN)]


def _mutated(rng: Random, data: bytes, other: bytes) -> bytes:
    name = _files()[(data[0] & ~_UNCLEAN) % len(_files())]
    text = not name.endswith((".log", "index", ".snapshot", names.ENDS))
    some = TEXT if text else batches.MUTATORS if name.endswith(".log") else ANY
    return data[:1] + rng.choice(some)(rng, data[1:], other[1:])


def _fixed(data: bytes) -> bytes:
    name = _files()[((data[:1] or b"\0")[0] & ~_UNCLEAN) % len(_files())]
    return data[:1] + batches.with_crcs(data[1:]) if name.endswith(".log") else data


def changed(data: bytes) -> str:
    """Every step goes well or says why not; the store can be written or says why not."""
    place = Path(_work().name) / "store"
    shutil.copytree(template(), place)
    try:
        kind = (data[:1] or b"\0")[0]
        if kind & _UNCLEAN:
            (place / names.CLEAN_SHUTDOWN).unlink()
        path = place / _files()[(kind & ~_UNCLEAN) % len(_files())]
        path.write_bytes(data[1:])
        return ", ".join(map(str, (_read(place), _checked(place), _written(place), _mended(place))))
    finally:
        shutil.rmtree(place)


def _read(place: Path) -> Counter[str]:
    said: Counter[str] = Counter()
    with segstore.open(place, mode="r") as store:
        for topic, info in _tried(said, store.topics, {}).items():
            for partition in info.partition_ids:
                _tried(said, lambda t=topic, p=partition: _read_all(store.partition(t, p)), None)
        _tried(said, store.stats, None)
        _tried(said, lambda: ReadOffsets(store), None)
        _tried(said, lambda: TransactionStateLog(store).load(), None)
    return said


def _tried(said: Counter[str], call: object, otherwise: object) -> object:
    try:
        return call()  # type: ignore[operator]
    except SegstoreError as error:
        said[type(error).__name__] += 1
        return otherwise


def _read_all(log: segstore.PartitionLog) -> None:
    for isolation in ("read_uncommitted", "read_committed"):
        at = log.start_offset
        for _ in range(_MOST_READS):
            records = log.read(at, 2000, isolation_level=isolation)
            list(records.headers)
            for call in (log.read_one, lambda offset: log.read_many([offset, log.start_offset])):
                with suppress(SegstoreError):
                    call(at)
            if records.next_offset <= at:
                break
            at = records.next_offset


def _checked(place: Path) -> bool:
    return bool(segstore.check(place))


def _written(place: Path) -> str:
    try:
        with segstore.open(place) as store:
            log = store.partition("t", 0)
            offset = log.append(b"more")
            assert list(log.read(offset).values) == [b"more"]
            store.sweep()
    except SegstoreError as error:
        return type(error).__name__
    return "written"


def _mended(place: Path) -> str:
    """What `check --repair` leaves it with."""
    try:
        repair(place)
    except SegstoreError as error:
        return type(error).__name__
    return f"{len(segstore.check(place)) > 0}"


TARGETS = {"store": Target(changed, seeds, (_mutated,), _fixed)}
