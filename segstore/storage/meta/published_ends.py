"""The published ends, `.segstore/ends`: a mapped file in which the store's writer publishes the end offsets
of each partition for other processes. One sequence lock guards the file.

After a header of 64 bytes (`ends_header`) the file has a slot of 64 bytes for each partition: key (a hash of
topic id and partition), log start offset, log end offset, high watermark, last stable offset, recovery point,
layout (a count of changes of the list of segments) and leader epoch, with a checksum (_native/ends.c). A slot
with a wrong checksum is ignored. If an older segstore wrote the file, its slots have no checksums (`checked`
is False), and an offset is used only if a checkpoint or the log confirms it. Numbers are in host byte order.
The ends of an open store are valid only until the machine is booted again, because a power cut may leave some
pages of the file old and others new.

The file only grows, and damage is overwritten in place, so that a mapping of the file stays safe. Threads and
processes: one writer, and any number of readers (`EndsReader`) in any process.

If several processes append to the store, the ends of its logs are in `.segstore/shared` (`shared_header`),
and a slot of `.segstore/ends` has only a valid key. The header's generation changes when sharing begins, when
sharing stops, and when the shared file has grown. Then all readers map both files again.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from segstore import names
from segstore._native import ffi, held, lib
from segstore.files import Files, Handle
from segstore.files.reserve import in_reserve
from segstore.integers import INT64_MAX
from segstore.mutex import Mutex, calls_out
from segstore.storage.meta import ends_header
from segstore.storage.meta.tailed_ends import TailedEnds
from segstore.threads import sleeps

if TYPE_CHECKING:
    from segstore.storage.meta.shared_header import SharedMap

HEADER = ends_header.SIZE
SLOT = lib.SEG_ENDS_SLOT
STEP = 65536
_LONGEST_WAIT = 86_400.0  # the longest sleep in C, in seconds
_SPINS = 1000
_PATIENCE = 50  # the longest wait of a reader for the end of a publication, in milliseconds


class Ends(NamedTuple):
    """The published ends of one partition. `start` is the log start offset. `end` is the log end offset.
    `stable` is the last stable offset. After a failed sync `recovery_point` is the bitwise complement of the
    recovery point, a negative number.
    """

    key: int
    start: int
    end: int
    high_watermark: int
    stable: int
    recovery_point: int
    layout: int
    epoch: int

    @property
    def synced(self) -> int:
        """Return the recovery point, which is stored as its bitwise complement after a failed sync."""
        return max(self.recovery_point, ~self.recovery_point)


Numbers = tuple[int, int, int, int, int, int, int, int]
"""The fields of `Ends`."""
Place = tuple[int, int]
"""The base offset of a log's active segment, and the file position at which the log ends."""
Shown = tuple[int, Numbers, "Place | None"]
"""(slot, ends, place of the log's end); the place is None if the partition is not open."""


class SharingSide(Protocol):
    """The calls by which a host publishes log ends in `.segstore/shared`, for the other processes that
    append. `shared.sharing` implements this protocol.
    """

    def of(self, slot: int, key: int) -> Any:
        """Return the `seg_share *` by which C uses the log's part of `.segstore/shared`. Raises OSError."""

    def show(self, shown: Sequence[Shown], ends: Any) -> None:
        """Publish the ends of these logs in `.segstore/shared`, all at one moment. `ends` is the memory
        mapping of `.segstore/ends`.
        """

    def end(self, slot: int, key: int) -> None:
        """Refuse further appends to the log of a deleted partition."""


def slot_key(topic_id: str, topic: str, partition: int) -> int:
    """Return the key of a partition in `.segstore/ends`: a hash of 63 bits, never 0."""
    digest = hashlib.blake2b(f"{topic_id} {topic} {partition}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 1) | 1


class _Mapped:
    """Maps `.segstore/ends` into memory, for the writer or for a reader. Finds the slot of a key, reads
    slots, and waits for publications.
    """

    def __init__(self, files: Files, path: str, *, write: bool) -> None:
        self._files, self._path, self._write = files, path, write
        self._shared_path = path.rpartition("/")[0] + f"/{names.SHARED}"
        self.shared: SharedMap | None = None
        """The memory mapping of `.segstore/shared`, with the ends of shared logs; None if the store is not
        shared.
        """
        self._map()

    def _map(self) -> None:
        with self._files.open(self._path, write=self._write) as handle:
            size = self._files.size(handle)
            if not HEADER <= size <= ends_header.MOST:
                raise OSError(errno.EINVAL, f"no published ends are {size} bytes", self._path)
            self._memory: mmap.mmap = self._files.map(handle, size, write=self._write)
            # No other file can get this inode while this file is mapped.
            self.inode = self._files.inode(handle)
        self._bytes = held("uint8_t[]", self._memory)
        self._size = size
        self._generation = self._read_generation()
        self._slots = self._scan_keys()
        self._map_shared()

    def _map_shared(self) -> None:
        """Map `.segstore/shared` with its present size, if the store is shared. Raises OSError."""
        path = self._shared_path
        if not self._files.exists(path):
            self.shared = None
            return
        from segstore.storage.meta.shared_header import SharedMap, look

        size = look(self._files, path)
        self.shared = None if size is None else SharedMap(self._files, path, size, write=self._write)

    def _map_more(self, slots: list[int]) -> None:
        """Map `.segstore/shared` again if one of the slots is after the end of the present mapping, because
        the file has grown.
        """
        if self.shared is not None and max(slots, default=-1) >= self.shared.logs:
            self._map_shared()

    def _read_generation(self) -> int:
        return int(struct.unpack_from("<q", self._memory, ends_header.GENERATION_AT)[0])

    def _scan_keys(self) -> dict[int, int]:
        count = (self._size - HEADER) // SLOT
        with (
            memoryview(self._memory) as memory,
            memory[HEADER : HEADER + count * SLOT] as slots,
            slots.cast("q") as numbers,
            numbers[:: SLOT // 8] as keys,
        ):
            # `tolist` copies all keys before the dict is built, because the writer may change them at any
            # time.
            found = dict(zip(keys.tolist(), range(count), strict=True))
        found.pop(0, None)  # a free slot has the key 0
        return found

    @property
    def memory(self) -> Any:
        """Return the memory mapping of `.segstore/ends`, for calls of C."""
        return self._bytes

    @property
    def checked(self) -> bool:
        """Return whether the header and the slots have checksums."""
        header = ends_header.parse(self._memory[:HEADER])
        return header is None or header.checked

    def damaged(self) -> list[int]:
        """Return the slots with a wrong checksum; an empty list during a publication, and after a publication
        in which the writer was killed.
        """
        keys = (self._numbers(list(range((self._size - HEADER) // SLOT))) or [])[::8]
        return [slot for slot, key in enumerate(keys) if key == lib.SEG_ENDS_DAMAGED]

    @property
    def cut_short(self) -> bool:
        """Return whether a publication has begun and not ended: it is under way, or its writer was killed."""
        return bool(self._sequence() % 2)

    def _sequence(self) -> int:
        return int(struct.unpack_from("<q", self._memory, 0)[0])

    def slot(self, key: int) -> int | None:
        """Return the slot with this key; None if there is none."""
        if self._read_generation() != self._generation and not self._write:
            self._map()
        return self._slots.get(key)

    def keys(self) -> set[int]:
        """Return the keys of all slots."""
        return set(self._slots)

    @property
    def nonce(self) -> int:
        """Return the number of the last clean close, which is also in the clean shutdown marker; 0 if the
        store is open, or was not closed cleanly.
        """
        return int(struct.unpack_from("<q", self._memory, ends_header.NONCE_AT)[0])

    @property
    def publications(self) -> int:
        """Return the number of publications, modulo 2^32."""
        return int(struct.unpack_from("<I", self._memory, ends_header.PUBLICATIONS_AT)[0])

    @property
    def news(self) -> int:
        """Return a number that changes with each `nudge` (a wake-up without a publication), and if another
        file replaces this file.
        """
        shared = self.shared  # this is a local variable, because another thread may replace `self.shared`
        return self.inode << 32 | int(lib.seg_nudges(self._bytes, self._size, _of_c(shared)))

    @calls_out  # a signal handler that runs during the sleep may call the store
    def wait(self, seen: int, seconds: float) -> None:
        """Sleep until `publications` differs from `seen`, or `seconds` have passed. A signal mostly ends the
        sleep at once; if it comes just before a sleep, its handler runs after `longest_sleep`.
        """
        for sleep in sleeps(seconds):
            code = lib.seg_await(self._bytes, self._size, seen, int(min(sleep, _LONGEST_WAIT) * 1e9))
            if code in (0, -errno.EINTR):
                return
            if code != -errno.ETIMEDOUT:
                raise OSError(-code, os.strerror(-code), self._path)

    def wake(self) -> None:
        """Wake the threads of all processes in `wait`, and the threads of this process in
        `TailedEnds.wait`. Raises OSError.
        """
        code = lib.seg_rouse(self._bytes, self._size)
        if code < 0:
            raise OSError(-code, os.strerror(-code), self._path)

    @calls_out
    def wait_for_adoption(self, seconds: float) -> None:
        """Sleep until staged appends were added to their logs or refused (`wake_sealers` is called in another
        thread or process), `seconds` have passed, or a signal arrives. Publications don't end this sleep. A
        `wake_sealers` before this call has no effect.
        """
        timeout = max(0, int(min(seconds, _LONGEST_WAIT) * 1e9))
        code = lib.seg_await_adoption(self._bytes, self._size, timeout)
        if code < 0 and -code not in (errno.ETIMEDOUT, errno.EINTR):
            raise OSError(-code, os.strerror(-code), self._path)

    def wake_sealers(self) -> None:
        """Wake all threads in `wait_for_adoption`, because staged appends were added to their logs (adopted),
        or were refused. Raises OSError.
        """
        code = lib.seg_wake_sealers(self._bytes, self._size)
        if code < 0:
            raise OSError(-code, os.strerror(-code), self._path)

    def tail(self, keys: list[int]) -> TailedEnds:
        """Return a `TailedEnds`, which waits for changes of the published ends of these keys. Raises
        LookupError if a key has no slot, or if the slot can't be read now.
        """
        if self._read_generation() != self._generation and not self._write:
            self._map()
        slots = [self._slots[key] for key in keys]
        self._map_more(slots)
        return TailedEnds(self._bytes, self._size, slots, self.shared)

    def _read(self, slots: list[int]) -> list[Ends] | None:
        self._map_more(slots)
        numbers = self._numbers(slots, self.shared)
        if numbers is None:
            return None
        return [Ends(*numbers[at : at + 8]) for at in range(0, len(numbers), 8)]

    def _numbers(self, slots: list[int], shared: SharedMap | None = None) -> list[int] | None:
        """Return the eight fields of `Ends` of each of these slots, in one flat list, with the ends of shared
        logs from `shared`; None if a publication is under way, and does not end.
        """
        # The caller refers to `shared`, so the memory of `shared` stays mapped during the call of C.
        n, numbers = len(slots), ffi.new("int64_t[]", slots)
        values = ffi.new("int64_t[]", 8 * n)
        code = lib.seg_snapshot(self._bytes, self._size, _of_c(shared), numbers, values, n, _SPINS)
        return None if code == -errno.EAGAIN else list(ffi.unpack(values, 8 * n))


class EndsWriter(_Mapped):
    """Writes `.segstore/ends`. One lock, which a thread holds for nanoseconds, guards the publications of all
    partitions.

    `damage` lists the damages that were found and repaired at the open; a damaged slot is freed. `found`:
    whether the file had a valid header. `was_checked`: whether the header and the slots had checksums.
    `lost`: whether the file was damaged.
    """

    def __init__(self, files: Files, path: str) -> None:
        there = ends_header.look(files, path)
        self.damage = [there.damage] if there.damage else []
        self.found = there.header is not None
        self._doubt = there.header is not None and there.header.doubt
        if there.size < HEADER or files.links(path) > 1 or not (self.found or there.damage):
            self.found = False
            _create(files, path)
        else:
            if not self.found:
                _wipe(files, path, there.size)
            if there.size % STEP:
                self._fill_up(files, path, there.size)
        super().__init__(files, path, write=True)
        self._boot = int(struct.unpack_from("<q", self._memory, ends_header.BOOT_AT)[0])
        self.lock = Mutex()
        self.on_published: tuple[Callable[[], None], ...] = ()
        """Functions to call after each publication that is made in Python, not in C. They must not block,
        because the publishing thread may hold locks of the partition.
        """
        self._outgrown: list[Any] = []
        """Mappings that were made before the file grew. C may still publish through them, because they map
        the same pages as the new mapping.
        """
        self._gathered: dict[int, tuple[Numbers, Place | None]] | None = None
        self.sharing: SharingSide | None = None
        """The object by which a host publishes in `.segstore/shared`, too; None in other writers."""
        # Whether another process becomes the host, so that this process must not publish any more.
        self._has_left = False
        self._claimed = False  # whether a key got a slot after the last publication
        self.was_checked = there.header.checked if self.found and there.header else True
        self._mend()
        self._free = self._find_free()

    def _fill_up(self, files: Files, path: str, size: int) -> None:
        """Extend the file to the next multiple of STEP."""
        self.damage.append(f"its size is {size} bytes, not a multiple of {STEP}")
        with files.open(path, write=True) as handle:
            files.allocate(handle, size, STEP - size % STEP)

    def _mend(self) -> None:
        """Make the sequence number even, add missing checksums, and free damaged slots."""
        # A writer that was killed within a publication leaves an odd sequence number. Readers wait until the
        # number is even.
        torn = self.cut_short
        if torn:
            struct.pack_into("<q", self._memory, 0, _after(self._sequence()))
        if not self.was_checked:
            slots = list(range((self._size - HEADER) // SLOT))
            claims = self._numbers(slots)
            assert claims is not None
            flat = [
                n for at in range(0, len(claims), 8) for n in (claims[at : at + 8] if claims[at] else _FREE)
            ]
            lib.seg_publish(self._bytes, self._size, slots, flat, len(slots))
            self._write_header(self.nonce)
        bad = self.damaged()
        for slot in bad:
            lib.seg_publish(self._bytes, self._size, [slot], list(_FREE), 1)
        if bad and not torn:
            self.damage.append(f"{len(bad)} of its slots are damaged")
        # After a clean close nothing is published, so no kill has made the sequence number odd.
        if torn and self.nonce:
            self.damage.append("its sequence is odd")
        if bad or not self.was_checked:
            self._slots = self._scan_keys()
            self._bump_generation()
        self.lost = bool(bad or self.damage)

    def _find_free(self) -> list[int]:
        taken = set(self._slots.values())
        return [s for s in range((self._size - HEADER) // SLOT - 1, -1, -1) if s not in taken]

    def get(self, key: int) -> Ends | None:
        """Return the published ends of `key`; None if there are none."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        found = self._read([slot])
        return found[0] if found and found[0].key == key else None

    def claim(self, key: int) -> int:
        """Return the slot of `key`. If `key` has no slot, it gets a free slot, which stays empty until the
        first publication of `key`. Raises OSError if the disk is full.
        """
        with self.lock:
            if key not in self._slots:
                if not self._free:
                    self._grow()
                self._slots[key] = self._free.pop()
                self._claimed = True
            return self._slots[key]

    def restore(self, left: Mapping[int, Sequence[int]]) -> None:
        """Give each partition the slot in `.segstore/ends` that has the number of its slot in
        `.segstore/shared`, because guests use the numbers. A slot may be missing in `.segstore/ends` if the
        writer was killed within a publication. `left` has the fields of `Ends` by slot. Raises OSError.
        """
        for slot, values in left.items():
            if self._slots.get(values[0]) == slot or slot in self._slots.values():
                continue
            with self.lock:
                while slot >= (self._size - HEADER) // SLOT:
                    self._grow()
                self._slots[values[0]] = slot
                self._free = self._find_free()
                self._claimed = True
            self.publish([slot], [Ends(*values)])

    def begin_empty(self, key: int) -> None:
        """Publish the ends of a new, empty partition. Raises OSError if the disk is full."""
        if key not in self._slots:
            self.publish([self.claim(key)], [Ends(key, 0, 0, 0, 0, 0, 0, 0)])

    def publish_sharing(self) -> None:
        """Map `.segstore/shared` again, and make all readers map it again, because sharing has begun or the
        file has grown. Other processes must not append to logs in the new part of the file before this call.
        Raises OSError.
        """
        with self.lock:
            self._map_shared()
            self._bump_generation()

    def leave(self) -> None:
        """Publish nothing from now on, not even a sync that ends later, because another process becomes the
        host.
        """
        with self.lock:
            self._has_left = True

    def end_sharing(self) -> None:
        """Publish the ends of the shared logs in `.segstore/ends`, then mark `.segstore/shared` as outdated.
        In the reverse order readers could see a smaller offset than before. The caller ensures that no other
        process shares the store. Raises OSError.
        """
        with self.lock:
            if self.shared is None:
                return
            slots = list(self._slots.values())
            numbers = self._numbers(slots, self.shared)
            if numbers is None:
                raise OSError(errno.EAGAIN, "a publication of ends does not end", self._path)
            lib.seg_publish(self._bytes, self._size, slots, numbers, len(slots))
            self.shared.end()
            self.shared = None
            self._bump_generation()

    @property
    def mapping(self) -> tuple[Any, int]:
        """Return (memory mapping of `.segstore/ends`, size of the mapping in bytes), for publications by C
        code.
        """
        return self._bytes, self._size

    def _grow(self) -> None:
        with self._files.open(self._path, write=True) as handle:
            in_reserve(lambda: self._files.allocate(handle, self._size, STEP), STEP)
        slots = self._slots
        # The old mapping is kept, because C code may still use it: an append in C wakes readers after it has
        # released its lock.
        self._outgrown.append(self._bytes)
        try:
            self._map()
        finally:
            self._slots = slots
        self._free = self._find_free()

    def release(self, key: int) -> None:
        """Free the slot of a deleted partition."""
        with self.lock:
            slot = self._slots.pop(key, None)
        if slot is not None:
            self.publish([slot], [Ends(0, 0, 0, 0, 0, 0, 0, 0)])
            if self.sharing is not None:
                self.sharing.end(slot, key)
            with self.lock:
                self._free.append(slot)
                self._bump_generation()

    def clear(self) -> None:
        """Free all slots, because another writer, for example a broker, has used the directory."""
        for key in self.keys():
            self.release(key)

    def publish_one(self, slot: int, ends: Numbers) -> None:
        """Publish the ends of one partition."""
        with self.lock:
            is_usual = (
                self._gathered is None
                and not self._claimed
                and self._slots.get(ends[0]) == slot
                and not self._has_left
            )
            if is_usual:
                lib.seg_publish(self._bytes, self._size, [slot], ends, 1)
        if not is_usual:
            self.publish([slot], [ends])
            return
        for call in self.on_published:
            call()

    def publish(self, slots: list[int], ends: Sequence[Numbers], places: Sequence[Place | None] = ()) -> None:
        """Publish the ends of several partitions, all at one moment. `places` has the `Place` of each log's
        end; only a shared store needs it.
        """
        with self.lock:
            if self._has_left:
                return
            places = places or [None] * len(slots)
            if self._gathered is not None:
                self._gathered.update(zip(slots, zip(ends, places, strict=True), strict=True))
                return
            shown = [
                each
                for each in zip(slots, ends, places, strict=True)
                # The ends of a deleted topic are not published, because the slot may belong to another
                # partition now.
                if not each[1][0] or self._slots.get(each[1][0]) == each[0]
            ]
            if slots and not shown:
                return
            if self.sharing is not None:
                self.sharing.show(shown, self._bytes)
            slots = [slot for slot, _, _ in shown]
            flat = [number for _, numbers, _ in shown for number in numbers]
            lib.seg_publish(self._bytes, self._size, slots, flat, len(slots))
            if self._claimed:
                self._bump_generation()  # this makes readers read the keys again
                self._claimed = False
        for call in self.on_published:
            call()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Delay all publications until the end of the `with` block, then publish all of them at one moment.
        One thread at a time may call this.
        """
        self._gathered = {}
        try:
            yield
        finally:
            with self.lock:
                gathered, self._gathered = self._gathered, None
            held = list(gathered.values())
            self.publish(list(gathered), [ends for ends, _ in held], [place for _, place in held])

    def set_nonce(self, nonce: int) -> None:
        """Write `nonce` into the header: the number of the clean shutdown marker, or 0 if the store
        is open.
        """
        self._doubt = self._doubt and not nonce
        self._write_header(nonce)

    def _write_header(self, nonce: int) -> None:
        held = ends_header.pack(nonce, self._boot, self._read_generation(), doubt=self._doubt)
        self._memory[ends_header.FORMAT_AT : HEADER] = held

    @property
    def doubted(self) -> bool:
        """Return whether a sync of a partition without a slot may have failed after the last clean close."""
        return self._doubt

    def doubt(self) -> None:
        """Record in the header that a sync of a partition without a slot may have failed."""
        self._doubt = True
        self._write_header(self.nonce)

    def begin(self) -> None:
        """Record durably in the header that the store is open. Without that, a power cut could bring back the
        number of the last clean close, and the next open, which finds no clean shutdown marker, would
        conclude that a broker was killed here. Raises OSError.
        """
        self._boot = self._files.boot()
        self.set_nonce(0)
        self.sync()

    def sync(self) -> None:
        """Sync the file and its directory. Raises OSError."""
        with self._files.open(self._path, write=True) as handle:
            self._files.sync(handle)
        self._files.sync_dir(self._path.rpartition("/")[0])

    def _bump_generation(self) -> None:
        struct.pack_into("<q", self._memory, ends_header.GENERATION_AT, _after(self._read_generation()))
        self.nudge()

    def nudge(self) -> None:
        """Wake the waiting threads of all processes without a publication, so that they look for changes of
        topics and groups.
        """
        lib.seg_nudge(self._bytes, self._size)


class EndsReader(_Mapped):
    """Reads `.segstore/ends`, in any process, without a lock."""

    def __init__(self, files: Files, path: str) -> None:
        super().__init__(files, path, write=False)
        self._last: dict[int, Ends] = {}

    def get(self, key: int) -> Ends | None:
        """Return the ends of the partition with this key; None if they were not published. If the writer was
        killed within a publication, the ends that this reader last read are returned.
        """
        return self.get_all([key]).get(key)

    def get_all(self, keys: list[int]) -> dict[int, Ends]:
        """Return the published ends by key, all read at one moment. If the ends of a key were not published,
        the key is missing in the result. If the writer was killed within a publication, the ends that this
        reader last read are returned.
        """
        if self._read_generation() != self._generation:
            self._map()
        slots = [slot for slot in map(self._slots.get, keys) if slot is not None]
        found = self._read(slots)
        for _ in range(_PATIENCE):
            if found is not None:
                break
            # A writer that is only preempted within a publication will soon finish the publication.
            time.sleep(0.001)
            found = self._read(slots)
        self._last.update((ends.key, ends) for ends in found or () if ends.key > 0)
        there = [key for key in keys if key in self._slots]
        return {key: self._last[key] for key in there if key in self._last}

    def glance(self, ends: Ends) -> EndsGlance | None:
        """Return an `EndsGlance`, which finds out whether the published ends still equal `ends`, a result of
        `get`. Return None if the partition has no slot any more.
        """
        generation, memory, shared = self._generation, self._bytes, self.shared
        slot = self._slots.get(ends.key)
        if slot is None:
            return None
        seen = {"map": memory, "len": len(memory), "slot": slot, "generation": generation, "values": ends}
        return EndsGlance(ffi.new("seg_seen *", seen | {"shared": _of_c(shared)}), (memory, shared))

    def sealed(self, key: int) -> dict[int, int]:
        """Return {base offset: end in bytes} of those sealed segments of a shared log to which a process may
        still write. Bytes after this end are not part of the log.
        """
        slot, shared = self._slots.get(key), self.shared
        return {} if slot is None or shared is None else shared.sealed(slot, key)


class EndsGlance:
    """Finds out, by one call of C, whether one partition's published ends still equal the ends that were last
    read.
    """

    __slots__ = ("_memory", "_seen")

    def __init__(self, seen: Any, memory: tuple[Any, SharedMap | None]) -> None:
        self._seen, self._memory = seen, memory  # `_memory` keeps the memory mapped, because C reads it

    def unchanged(self) -> bool:
        """Return whether the published ends are still the same. Return False during a publication."""
        return bool(lib.seg_unchanged(self._seen))


def _of_c(shared: SharedMap | None) -> Any:
    return ffi.NULL if shared is None else shared.c


def _after(number: int) -> int:
    """Return the next number of an int64 counter: 0 after the largest number, which a damaged file may
    contain.
    """
    return (number + 1) & INT64_MAX


_FREE = Ends(0, 0, 0, 0, 0, 0, 0, 0)


def _create(files: Files, path: str) -> None:
    if files.exists(path):
        files.unlink(path)
    with files.open(path, write=True, create=True) as handle:
        in_reserve(lambda: files.allocate(handle, 0, STEP), STEP)
        _write_anew(files, handle)


def _wipe(files: Files, path: str, size: int) -> None:
    """Overwrite a damaged file, which readers may have mapped, with free slots."""
    with files.open(path, write=True) as handle:
        files.allocate(handle, 0, size)  # this allocates disk space for holes in the file
        files.pwrite(handle, bytes(size - HEADER), HEADER)
        # The generation changes to a new random number, so that readers that have the file mapped read the
        # keys again.
        _write_anew(files, handle, secrets.randbits(62))


def _write_anew(files: Files, handle: Handle, generation: int = 0) -> None:
    header = ends_header.pack(0, files.boot(), generation, doubt=False)
    files.pwrite(handle, header, ends_header.FORMAT_AT)


def open_reader(files: Files, path: str) -> EndsReader | None:
    """Return a reader of `.segstore/ends`; None if the file is missing or damaged, or if the machine
    went down while the store was open. Raises OSError.
    """
    return None if ends_header.look(files, path).header is None else EndsReader(files, path)
