"""The published ends, `.segstore/ends`: a mapped file with the visible end of every partition, under one
sequence lock.

The file has a header of 64 bytes (`ends_header`), then a slot of 64 bytes for each partition. A slot has the
key, log start offset, log end offset, high watermark, last stable offset, recovery point, layout (a count of
changes of the list of segments) and leader epoch, with a check (_native/ends.c). The key is a hash of topic
id and partition, so that a slot itself identifies its partition. A slot with a wrong check is damaged, and
ignored. A file from before slots had checks is not `checked` until the next writer has opened it: its numbers
count only if another source confirms them. Numbers are in host byte order, since only this machine uses the
file. The ends of an open store are valid only until the machine is booted anew, since a power cut leaves any
mixture of old and new.

Threads and processes: one writer (the store's), any number of `EndsReader`s in any process. The file only
grows, in place, and is never truncated, so that a mapping of it is always safe; a damaged header or slot is
made anew in place, so that readers that have the file mapped go on.

If several processes append to the store, the ends of its logs are in `.segstore/shared` (`shared_header`),
and only the key of a slot here is valid. The generation changes when sharing begins, when it stops, and when
the shared file has grown, so that all readers map the files anew.
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

if TYPE_CHECKING:
    from segstore.storage.meta.shared_header import SharedMap

HEADER = ends_header.SIZE
SLOT = lib.SEG_ENDS_SLOT
STEP = 65536
_LONGEST_WAIT = 86_400.0  # seconds
_SPINS = 1000
_PATIENCE = 50  # milliseconds


class Ends(NamedTuple):
    """The published ends of one partition. After a failed sync `recovery_point` holds the complement (~) of
    the recovery point, which is negative.
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
        """Return the recovery point, whether a sync has failed or not."""
        return max(self.recovery_point, ~self.recovery_point)


Numbers = tuple[int, int, int, int, int, int, int, int]
"""The fields of `Ends`."""
Place = tuple[int, int]
"""The base offset of a log's active segment, and the file position at which the log ends."""
Shown = tuple[int, Numbers, "Place | None"]
"""A slot, its ends, and the log's place; the place is None for a partition that is not open."""


class SharingSide(Protocol):
    """The calls of a host to the shared file, in which the other appending processes see the published ends.
    `shared.sharing` implements them.
    """

    def of(self, slot: int, key: int) -> Any:
        """Return the share (`seg_share *`) of the partition in this slot. Raises OSError."""

    def show(self, shown: Sequence[Shown], ends: Any) -> None:
        """Publish ends of logs, all at one moment; `ends` is the mapping of the published ends."""

    def end(self, slot: int, key: int) -> None:
        """Refuse further appends to the log of a deleted partition."""


def slot_key(topic_id: str, topic: str, partition: int) -> int:
    """Return the partition's key: 63 bits, never 0."""
    digest = hashlib.blake2b(f"{topic_id} {topic} {partition}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 1) | 1


class _Mapped:
    """The mapping of the file, for both writer and readers: keys of slots, and the look-up of a key."""

    def __init__(self, files: Files, path: str, *, write: bool) -> None:
        self._files, self._path, self._write = files, path, write
        self._shared_path = path.rpartition("/")[0] + f"/{names.SHARED}"
        self.shared: SharedMap | None = None
        """The ends of shared logs; None if the store is not shared."""
        self._map()

    def _map(self) -> None:
        with self._files.open(self._path, write=self._write) as handle:
            size = self._files.size(handle)
            if not HEADER <= size <= ends_header.MOST:
                raise OSError(errno.EINVAL, f"no published ends are {size} bytes", self._path)
            self._memory: mmap.mmap = self._files.map(handle, size, write=self._write)
            self.inode = self._files.inode(handle)  # unique while this file is mapped
        self._bytes = held("uint8_t[]", self._memory)
        self._size = size
        self._generation = self._read_generation()
        self._slots = self._scan_keys()
        self._map_shared()

    def _map_shared(self) -> None:
        """Map the shared file in its present size, if the store is shared. Raises OSError."""
        path = self._shared_path
        if not self._files.exists(path):
            self.shared = None
            return
        from segstore.storage.meta.shared_header import SharedMap, look

        size = look(self._files, path)
        self.shared = None if size is None else SharedMap(self._files, path, size, write=self._write)

    def _map_more(self, slots: list[int]) -> None:
        """Map the shared file anew if one of the slots lies after the mapping's end."""
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
            # the writer may give slots to keys while they are read
            found = dict(zip(keys.tolist(), range(count), strict=True))
        found.pop(0, None)  # key 0: free slots
        return found

    @property
    def memory(self) -> Any:
        """Return the mapping, for C."""
        return self._bytes

    @property
    def checked(self) -> bool:
        """Return whether header and slots have checks."""
        header = ends_header.parse(self._memory[:HEADER])
        return header is None or header.checked

    def damaged(self) -> list[int]:
        """Return the slots with a wrong check; an empty list during a publication, also if a killed writer
        left it unfinished.
        """
        keys = (self._numbers(list(range((self._size - HEADER) // SLOT))) or [])[::8]
        return [slot for slot, key in enumerate(keys) if key == lib.SEG_ENDS_DAMAGED]

    @property
    def cut_short(self) -> bool:
        """Return whether a publication has begun and not ended, perhaps because its writer was killed."""
        return bool(self._sequence() % 2)

    def _sequence(self) -> int:
        return int(struct.unpack_from("<q", self._memory, 0)[0])

    def slot(self, key: int) -> int | None:
        """Return the slot of a partition, None if it has none."""
        if self._read_generation() != self._generation and not self._write:
            self._map()
        return self._slots.get(key)

    def keys(self) -> set[int]:
        """Return the keys that have a slot."""
        return set(self._slots)

    @property
    def nonce(self) -> int:
        """Return the number of the last clean close, which is also in the clean shutdown marker."""
        return int(struct.unpack_from("<q", self._memory, ends_header.NONCE_AT)[0])

    @property
    def publications(self) -> int:
        """Return the number of publications, modulo 2^32."""
        return int(struct.unpack_from("<I", self._memory, ends_header.PUBLICATIONS_AT)[0])

    @property
    def news(self) -> int:
        """Return a number that changes with every nudge, and when the file is replaced."""
        shared = self.shared  # a local name, because another thread may replace `self.shared`
        return self.inode << 32 | int(lib.seg_nudges(self._bytes, self._size, _of_c(shared)))

    @calls_out  # a signal handler that runs while this sleeps may call the store
    def wait(self, seen: int, seconds: float) -> None:
        """Return when `publications` is no longer `seen`, after `seconds`, or at a signal."""
        code = lib.seg_await(self._bytes, self._size, seen, max(0, int(min(seconds, _LONGEST_WAIT) * 1e9)))
        if code < 0 and -code not in (errno.ETIMEDOUT, errno.EINTR):
            raise OSError(-code, os.strerror(-code), self._path)

    def wake(self) -> None:
        """Have all threads in `wait` return early, in all processes, and also the threads of this process
        that wait for followed ends. Raises OSError.
        """
        code = lib.seg_rouse(self._bytes, self._size)
        if code < 0:
            raise OSError(-code, os.strerror(-code), self._path)

    @calls_out
    def wait_for_adoption(self, seconds: float) -> None:
        """Return when the store's writer calls `wake_sealers`, after `seconds`, or at a signal. Publications
        don't end this wait. A `wake_sealers` just before this call is missed.
        """
        timeout = max(0, int(min(seconds, _LONGEST_WAIT) * 1e9))
        code = lib.seg_await_adoption(self._bytes, self._size, timeout)
        if code < 0 and -code not in (errno.ETIMEDOUT, errno.EINTR):
            raise OSError(-code, os.strerror(-code), self._path)

    def wake_sealers(self) -> None:
        """Have all sealers look whether their manifests were adopted or refused. Raises OSError."""
        code = lib.seg_wake_sealers(self._bytes, self._size)
        if code < 0:
            raise OSError(-code, os.strerror(-code), self._path)

    def tail(self, keys: list[int]) -> TailedEnds:
        """Return the published ends of these keys, to wait for changes. Raises LookupError if the ends of a
        key can't be read now.
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
        """Return the eight numbers of each of these slots, from the shared logs if there are any; None if a
        publication does not end.
        """
        # The caller keeps `shared`, and so its mapping, alive.
        n, numbers = len(slots), ffi.new("int64_t[]", slots)
        values = ffi.new("int64_t[]", 8 * n)
        code = lib.seg_snapshot(self._bytes, self._size, _of_c(shared), numbers, values, n, _SPINS)
        return None if code == -errno.EAGAIN else list(ffi.unpack(values, 8 * n))


class EndsWriter(_Mapped):
    """The writer of the published ends. Publications of all partitions pass one lock, held for nanoseconds.

    `damage` lists the damages that were found and repaired; damaged ends count as not published. `found`: the
    file had a sound header; `was_checked`: header and slots had checks when the file was opened; `lost`: ends
    were damaged, or half published.
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
        """Functions that are called after each publication by Python. They must not wait, because the
        publishing thread may hold locks of the partition.
        """
        self._outgrown: list[Any] = []
        """Mappings that were made before the file grew. C may still publish in them: their pages are those of
        the new mapping.
        """
        self._gathered: dict[int, tuple[Numbers, Place | None]] | None = None
        self.sharing: SharingSide | None = None
        """The shared file of a host to which other processes append; None if the store is not shared."""
        self._has_left = False  # whether another process may be the host now
        self._claimed = False  # whether a slot was claimed since the last publication
        self.was_checked = there.header.checked if self.found and there.header else True
        self._mend()
        self._free = self._find_free()

    def _fill_up(self, files: Files, path: str, size: int) -> None:
        """Extend the file to a multiple of STEP again."""
        self.damage.append(f"its size is {size} bytes, not a multiple of {STEP}")
        with files.open(path, write=True) as handle:
            files.allocate(handle, size, STEP - size % STEP)

    def _mend(self) -> None:
        """Make the sequence even, give every slot its check, and free damaged slots."""
        # If a writer was killed within a publication, the sequence is odd, and readers wait until it is even.
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
        if torn and self.nonce:  # no ends are published after a clean close
            self.damage.append("its sequence is odd")
        if bad or not self.was_checked:
            self._slots = self._scan_keys()
            self._bump_generation()
        self.lost = bool(bad or self.damage)

    def _find_free(self) -> list[int]:
        taken = set(self._slots.values())
        return [s for s in range((self._size - HEADER) // SLOT - 1, -1, -1) if s not in taken]

    def get(self, key: int) -> Ends | None:
        """Return the published ends of `key`."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        found = self._read([slot])
        return found[0] if found and found[0].key == key else None

    def claim(self, key: int) -> int:
        """Return the slot of `key`; if `key` has none yet, a free slot is given to it. A new slot is empty
        until its first publication. Raises OSError if there is no room.
        """
        with self.lock:
            if key not in self._slots:
                if not self._free:
                    self._grow()
                self._slots[key] = self._free.pop()
                self._claimed = True
            return self._slots[key]

    def restore(self, left: Mapping[int, Sequence[int]]) -> None:
        """Give partitions the same slots as in the shared file, because guests use the slots' numbers.
        `.segstore/ends` may lack a slot of the shared file if the writer was killed within a publication.
        `left` has the ends by slot. Raises OSError.
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
        """Publish an empty partition, which was just made. Raises OSError if there is no room."""
        if key not in self._slots:
            self.publish([self.claim(key)], [Ends(key, 0, 0, 0, 0, 0, 0, 0)])

    def publish_sharing(self) -> None:
        """Map the shared file anew, and have all readers do so, because sharing has begun or the file has
        grown. Called before other processes append to logs that are new in the file. Raises OSError.
        """
        with self.lock:
            self._map_shared()
            self._bump_generation()

    def leave(self) -> None:
        """Publish nothing from now on, not even after a late sync, because another process will
        be the host.
        """
        with self.lock:
            self._has_left = True

    def end_sharing(self) -> None:
        """Publish the ends of the shared logs here, then mark the shared file as ended. No process may share
        the store any more. Readers see no end go back. Raises OSError.
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
        """Return the mapping and its size, for C to publish by itself."""
        return self._bytes, self._size

    def _grow(self) -> None:
        with self._files.open(self._path, write=True) as handle:
            in_reserve(lambda: self._files.allocate(handle, self._size, STEP), STEP)
        slots = self._slots
        # Keep the old mapping: an append in C wakes readers after it has released the tail's lock, so it may
        # still use the old mapping when the tail already has the new one.
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
        """Free all slots, because another writer, such as a broker, used the directory."""
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
        """Publish the ends of several partitions at once; `places` are the logs' places in a shared store."""
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
                # The slot of a deleted topic may belong to another partition now.
                if not each[1][0] or self._slots.get(each[1][0]) == each[0]
            ]
            if slots and not shown:
                return
            if self.sharing is not None:
                self.sharing.show(shown, self._bytes)
            slots = [slot for slot, _, _ in shown]
            flat = [number for _, numbers, _ in shown for number in numbers]
            lib.seg_publish(self._bytes, self._size, slots, flat, len(slots))
            if self._claimed:  # readers look up slots anew
                self._bump_generation()
                self._claimed = False
        for call in self.on_published:
            call()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Collect all publications, and publish them together at the end of the block. One thread at a
        time.
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
        """Tie the published ends to a clean shutdown marker; 0 for an open store."""
        self._doubt = self._doubt and not nonce
        self._write_header(nonce)

    def _write_header(self, nonce: int) -> None:
        held = ends_header.pack(nonce, self._boot, self._read_generation(), doubt=self._doubt)
        self._memory[ends_header.FORMAT_AT : HEADER] = held

    @property
    def doubted(self) -> bool:
        """Return whether the recovery of a partition that has no published ends has failed since the last
        clean close.
        """
        return self._doubt

    def doubt(self) -> None:
        """Note that recovery has failed for a partition that has no published ends."""
        self._doubt = True
        self._write_header(self.nonce)

    def begin(self) -> None:
        """Mark the ends as an open store's, durably. Without a sync the number of the last clean shutdown
        might be back after a power cut, and the next open would take the directory for one that a broker has
        used. Raises OSError.
        """
        self._boot = self._files.boot()
        self.set_nonce(0)
        self.sync()

    def sync(self) -> None:
        """Sync the file and its name. Raises OSError."""
        with self._files.open(self._path, write=True) as handle:
            self._files.sync(handle)
        self._files.sync_dir(self._path.rpartition("/")[0])

    def _bump_generation(self) -> None:
        struct.pack_into("<q", self._memory, ends_header.GENERATION_AT, _after(self._read_generation()))
        self.nudge()

    def nudge(self) -> None:
        """Have all waiting threads, in other processes too, look at topics and groups as well as ends."""
        lib.seg_nudge(self._bytes, self._size)


class EndsReader(_Mapped):
    """The reading side, in another process or in this one: it takes no lock and changes nothing."""

    def __init__(self, files: Files, path: str) -> None:
        super().__init__(files, path, write=False)
        self._last: dict[int, Ends] = {}

    def get(self, key: int) -> Ends | None:
        """Return the published ends of `key`; None if there are none.

        If a writer was killed within a publication, the sequence stays odd, and the last consistent values
        that this reader saw are returned.
        """
        return self.get_all([key]).get(key)

    def get_all(self, keys: list[int]) -> dict[int, Ends]:
        """Return the published ends of some keys, all of one moment. If a writer was killed within a
        publication, the last consistent values are returned, as in `get`.
        """
        if self._read_generation() != self._generation:
            self._map()
        slots = [slot for slot in map(self._slots.get, keys) if slot is not None]
        found = self._read(slots)
        for _ in range(_PATIENCE):
            if found is not None:
                break
            # A live writer that was preempted within a publication goes on soon, so wait a little.
            time.sleep(0.001)
            found = self._read(slots)
        self._last.update((ends.key, ends) for ends in found or () if ends.key > 0)
        there = [key for key in keys if key in self._slots]
        return {key: self._last[key] for key in there if key in self._last}

    def glance(self, ends: Ends) -> EndsGlance | None:
        """Return a glance that shows whether these ends, a result of `get`, are still published; None if they
        are not.
        """
        generation, memory, shared = self._generation, self._bytes, self.shared
        slot = self._slots.get(ends.key)
        if slot is None:
            return None
        seen = {"map": memory, "len": len(memory), "slot": slot, "generation": generation, "values": ends}
        return EndsGlance(ffi.new("seg_seen *", seen | {"shared": _of_c(shared)}), (memory, shared))

    def sealed(self, key: int) -> dict[int, int]:
        """Return the ends of those sealed segments of a shared log whose files may be longer, by
        base offset.
        """
        slot, shared = self._slots.get(key), self.shared
        return {} if slot is None or shared is None else shared.sealed(slot, key)


class EndsGlance:
    """Compares one partition's ends with the last seen ones, by one call of C."""

    __slots__ = ("_memory", "_seen")

    def __init__(self, seen: Any, memory: tuple[Any, SharedMap | None]) -> None:
        self._seen, self._memory = seen, memory  # keeps the memory alive, which C reads

    def unchanged(self) -> bool:
        """Return whether the ends are the same; False also during a publication."""
        return bool(lib.seg_unchanged(self._seen))


def _of_c(shared: SharedMap | None) -> Any:
    return ffi.NULL if shared is None else shared.c


def _after(number: int) -> int:
    """Return the next number of an int64 counter. 0 follows the largest number, which a damaged file may
    hold.
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
    """Clear a file that readers may have mapped."""
    with files.open(path, write=True) as handle:
        files.allocate(handle, 0, size)  # fills holes in the file
        files.pwrite(handle, bytes(size - HEADER), HEADER)
        # Because of the new random generation, readers that have the file mapped look up their slots anew.
        _write_anew(files, handle, secrets.randbits(62))


def _write_anew(files: Files, handle: Handle, generation: int = 0) -> None:
    header = ends_header.pack(0, files.boot(), generation, doubt=False)
    files.pwrite(handle, header, ends_header.FORMAT_AT)


def open_reader(files: Files, path: str) -> EndsReader | None:
    """Return the published ends; None if the file is missing or unusable, or an open store wrote it before
    the machine was booted. Raises OSError.
    """
    return None if ends_header.look(files, path).header is None else EndsReader(files, path)
