"""The published ends, `.segstore/ends`: the visible end of every partition, mapped, under one sequence lock.

The file has a header of 64 bytes (`ends_header`), then a slot of 64 bytes for each partition: key, log start
offset, log end offset, high watermark, last stable offset, recovery point, layout (counts changes of the list
of segments) and leader epoch, and a check of them all (_native/ends.c). The key is a hash of topic id and
partition, so that a slot itself says whose it is. A slot whose check is wrong is damaged, and ignored. A file
from before slots had checks is not `checked` until the next writer has opened it: its numbers are claims,
which something else must confirm. Numbers are in host byte order: the file is of use on this machine only,
and what an open store has published only until the machine is booted anew, since a power cut leaves any
mixture of old and new.

Threads and processes: one writer (the store's), any number of `EndsReader`s in any process. The file only
grows, in place, and is never truncated, so that a mapping of it is always safe; a damaged header or slot is
made anew in place, so that readers that have the file mapped go on.

If several processes append to the store, the ends of its logs are in `.segstore/shared` (`shared_header`):
of a slot here only the key counts then. The generation changes when sharing begins or ends, and when that
file has grown, and so everybody maps it anew.
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
from segstore.storage.meta.tailed_ends import FollowedEnds

if TYPE_CHECKING:
    from segstore.storage.meta.shared_header import SharedMap

HEADER = ends_header.SIZE
SLOT = lib.SEG_ENDS_SLOT
STEP = 65536
_LONGEST_WAIT = 86_400.0  # seconds
_SPINS = 1000
_PATIENCE = 50  # milliseconds


class Ends(NamedTuple):
    """What is published of one partition. After a failed sync `recovery_point` holds the complement (~) of
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
"""The base offset of a log's active segment, and the position there at which the log ends."""
Shown = tuple[int, Numbers, "Place | None"]
"""A slot, what is published there, and the place; None: that of a partition that nobody has opened."""


class SharingSide(Protocol):
    """What a host shows to the processes that append to its store, too (`shared.sharing`)."""

    def of(self, slot: int, key: int) -> Any:
        """Return the share (`seg_share *`) of the partition that has this slot. Raises OSError."""

    def show(self, shown: Sequence[Shown], ends: Any) -> None:
        """Show ends of logs, all at one moment; `ends` is the mapping of the published ends."""

    def end(self, slot: int, key: int) -> None:
        """Let nobody append to the log of a partition that was deleted."""


def slot_key(topic_id: str, topic: str, partition: int) -> int:
    """Return the partition's key: 63 bits, never 0."""
    digest = hashlib.blake2b(f"{topic_id} {topic} {partition}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 1) | 1


class _Mapped:
    """The mapping that writer and readers share: keys of slots, and the look-up of a key."""

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
            self.inode = self._files.inode(handle)  # no other file has it while this one is mapped
        self._bytes = held("uint8_t[]", self._memory)
        self._size = size
        self._generation = self._read_generation()
        self._slots = self._scan_keys()
        self._map_shared()

    def _map_shared(self) -> None:
        """Map the shared file, as large as it is by now, if the store is shared. Raises OSError."""
        path = self._shared_path
        if not self._files.exists(path):
            self.shared = None
            return
        from segstore.storage.meta.shared_header import SharedMap, look

        size = look(self._files, path)
        self.shared = None if size is None else SharedMap(self._files, path, size, write=self._write)

    def _map_more(self, slots: list[int]) -> None:
        """Map the shared file anew if a slot lies behind the mapping."""
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
            found = dict(zip(keys.tolist(), range(count), strict=True))  # the writer may claim a slot now
        found.pop(0, None)  # slots that are free
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
        """Return the slots whose check is wrong; none while a publication is under way, also one that a
        killed writer never ends.
        """
        keys = (self._numbers(list(range((self._size - HEADER) // SLOT))) or [])[::8]
        return [slot for slot, key in enumerate(keys) if key == lib.SEG_ENDS_DAMAGED]

    @property
    def cut_short(self) -> bool:
        """Return whether a publication is under way, or was when its writer was killed."""
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
        """Return the number that the last clean close wrote; the clean shutdown marker holds the same."""
        return int(struct.unpack_from("<q", self._memory, ends_header.NONCE_AT)[0])

    @property
    def publications(self) -> int:
        """Return how often ends were published, modulo 2^32."""
        return int(struct.unpack_from("<I", self._memory, ends_header.PUBLICATIONS_AT)[0])

    @property
    def news(self) -> int:
        """Return a number that changes with every nudge, and is another one in another file."""
        shared = self.shared  # another thread may map it anew meanwhile
        return self.inode << 32 | int(lib.seg_nudges(self._bytes, self._size, _of_c(shared)))

    @calls_out  # a signal handler that runs while this sleeps may call the store
    def wait(self, seen: int, seconds: float) -> None:
        """Return when `publications` is no longer `seen`, after `seconds`, or at a signal."""
        code = lib.seg_await(self._bytes, self._size, seen, max(0, int(min(seconds, _LONGEST_WAIT) * 1e9)))
        if code < 0 and -code not in (errno.ETIMEDOUT, errno.EINTR):
            raise OSError(-code, os.strerror(-code), self._path)

    def wake(self) -> None:
        """Have all threads in `wait`, in other processes too, return early, and those of this process that
        wait for followed ends. Raises OSError.
        """
        code = lib.seg_rouse(self._bytes, self._size)
        if code < 0:
            raise OSError(-code, os.strerror(-code), self._path)

    @calls_out
    def wait_for_adoption(self, seconds: float) -> None:
        """Return when the store's writer calls `wake_sealers`, after `seconds`, or at a signal; publications
        don't end this wait. A call that comes just before it is missed.
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

    def follow(self, keys: list[int]) -> FollowedEnds:
        """Return what is published under these keys, to wait for more. Raises LookupError where that can't be
        told of one of them now.
        """
        if self._read_generation() != self._generation and not self._write:
            self._map()
        slots = [self._slots[key] for key in keys]
        self._map_more(slots)
        return FollowedEnds(self._bytes, self._size, slots, self.shared)

    def _read(self, slots: list[int]) -> list[Ends] | None:
        self._map_more(slots)
        numbers = self._numbers(slots, self.shared)
        if numbers is None:
            return None
        return [Ends(*numbers[at : at + 8]) for at in range(0, len(numbers), 8)]

    def _numbers(self, slots: list[int], shared: SharedMap | None = None) -> list[int] | None:
        """Return the content of some slots, eight numbers each, the key first, or what the shared logs say;
        None where a publication does not end. The caller's `shared` keeps that mapping.
        """
        n, numbers = len(slots), ffi.new("int64_t[]", slots)
        values = ffi.new("int64_t[]", 8 * n)
        code = lib.seg_snapshot(self._bytes, self._size, _of_c(shared), numbers, values, n, _SPINS)
        return None if code == -errno.EAGAIN else list(ffi.unpack(values, 8 * n))


class EndsWriter(_Mapped):
    """The store's side. Publications of all partitions pass one lock, held for nanoseconds.

    `damage` says what was wrong with the file: that is put right, and what it made unreadable counts as not
    published. `found`: whether the file had a sound header; `was_checked`: whether what was published had
    checks when the file was opened; `lost`: whether anything was damaged, or half published.
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
        """Called behind each publication, but those that C makes by itself, in the thread that publishes; it
        may hold locks of the partition's, so no call may wait."""
        self._outgrown: list[Any] = []
        """Mappings of the file from before it grew, at which C may publish: they show the same pages."""
        self._gathered: dict[int, tuple[Numbers, Place | None]] | None = None
        self.sharing: SharingSide | None = None
        """The side of a host whose store other processes append to; None where the store is not shared."""
        self._has_left = False  # whether another process is the host by now
        self._claimed = False  # whether a slot was claimed, in which nothing may be published yet
        self.was_checked = there.header.checked if self.found and there.header else True
        self._mend()
        self._free = self._find_free()

    def _fill_up(self, files: Files, path: str, size: int) -> None:
        """Extend the file to a size of whole steps again."""
        self.damage.append(f"its size is {size} bytes, not a multiple of {STEP}")
        with files.open(path, write=True) as handle:
            files.allocate(handle, size, STEP - size % STEP)

    def _mend(self) -> None:
        """Make the sequence even, give every slot its check, and free damaged slots."""
        # A writer that was killed within a publication left the sequence odd, at which nothing can be read.
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
        if torn and self.nonce:  # nothing is published behind a clean close
            self.damage.append("its sequence is odd")
        if bad or not self.was_checked:
            self._slots = self._scan_keys()
            self._bump_generation()
        self.lost = bool(bad or self.damage)

    def _find_free(self) -> list[int]:
        taken = set(self._slots.values())
        return [s for s in range((self._size - HEADER) // SLOT - 1, -1, -1) if s not in taken]

    def get(self, key: int) -> Ends | None:
        """Return what is published under `key`."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        found = self._read([slot])
        return found[0] if found and found[0].key == key else None

    def claim(self, key: int) -> int:
        """Return the slot of `key`, taken from the free slots if it has none yet: then nothing is published
        in it until its owner does. Raises OSError where there is no room.
        """
        with self.lock:
            if key not in self._slots:
                if not self._free:
                    self._grow()
                self._slots[key] = self._free.pop()
                self._claimed = True
            return self._slots[key]

    def restore(self, left: Mapping[int, Sequence[int]]) -> None:
        """Give partitions the slots again that they have in the shared file, of which `left` has the values:
        a kill within a publication loses one, and guests go by its number. Raises OSError.
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
        """Publish a partition that was just made, and so is empty. Raises OSError, as `claim`."""
        if key not in self._slots:
            self.publish([self.claim(key)], [Ends(key, 0, 0, 0, 0, 0, 0, 0)])

    def tell_shared(self) -> None:
        """Map the shared file anew, and have all readers do so: the store has become a shared one, or the
        file has grown. Appends of other processes to logs that are new there come behind this. Raises
        OSError.
        """
        with self.lock:
            self._map_shared()
            self._bump_generation()

    def leave(self) -> None:
        """Publish nothing any more, whatever sync ends late: another process will be the host."""
        with self.lock:
            self._has_left = True

    def end_sharing(self) -> None:
        """Publish here what the shared logs say, and then have the shared file be an old one: nobody shares
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
        # An append of C's wakes readers behind the tail's lock, and may still use this mapping when the tail
        # has the next one already.
        self._outgrown.append(self._bytes)
        try:
            self._map()
        finally:
            self._slots = slots
        self._free = self._find_free()

    def release(self, key: int) -> None:
        """Give the slot of a deleted partition back."""
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
        """Forget all that is published, since another writer, such as a broker, used the directory."""
        for key in self.keys():
            self.release(key)

    def publish_one(self, slot: int, ends: Numbers) -> None:
        """Make the ends of one partition visible."""
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
        """Make the ends of several partitions visible at once; `places` are those of the same partitions in a
        store that is shared.
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
                # Where a topic was deleted meanwhile, its slot may be another partition's.
                if not each[1][0] or self._slots.get(each[1][0]) == each[0]
            ]
            if slots and not shown:
                return
            if self.sharing is not None:
                self.sharing.show(shown, self._bytes)
            slots = [slot for slot, _, _ in shown]
            flat = [number for _, numbers, _ in shown for number in numbers]
            lib.seg_publish(self._bytes, self._size, slots, flat, len(slots))
            if self._claimed:  # readers look for slots anew
                self._bump_generation()
                self._claimed = False
        for call in self.on_published:
            call()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run a block at whose end all that is published within becomes visible at once. One thread at a
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
        """Return whether a recovery failed, since the last clean close, of a partition of which nothing is
        published.
        """
        return self._doubt

    def doubt(self) -> None:
        """Note that such a recovery failed."""
        self._doubt = True
        self._write_header(self.nonce)

    def begin(self) -> None:
        """Mark what is published from now on as an open store's. The mark is durable: else the last clean
        shutdown's number could be back after a power cut, and a broker would seem to have used the directory.
        Raises OSError.
        """
        self._boot = self._files.boot()
        self.set_nonce(0)
        self.sync()

    def sync(self) -> None:
        """Make durable what is published, and the file's name. Raises OSError."""
        with self._files.open(self._path, write=True) as handle:
            self._files.sync(handle)
        self._files.sync_dir(self._path.rpartition("/")[0])

    def _bump_generation(self) -> None:
        struct.pack_into("<q", self._memory, ends_header.GENERATION_AT, _after(self._read_generation()))
        self.nudge()

    def nudge(self) -> None:
        """Have all threads that wait, in other processes too, look at more than ends: there is other news."""
        lib.seg_nudge(self._bytes, self._size)


class EndsReader(_Mapped):
    """The side of another process, or of a reader in this one: it takes no lock and changes nothing."""

    def __init__(self, files: Files, path: str) -> None:
        super().__init__(files, path, write=False)
        self._last: dict[int, Ends] = {}

    def get(self, key: int) -> Ends | None:
        """Return what is published under `key`; None where nothing is.

        A writer that was killed in the middle of a publication leaves the sequence odd: then the last
        consistent values that this reader saw are given.
        """
        return self.get_all([key]).get(key)

    def get_all(self, keys: list[int]) -> dict[int, Ends]:
        """Return what is published under some keys, all at one moment; a dead writer's as `get` says."""
        if self._read_generation() != self._generation:
            self._map()
        slots = [slot for slot in map(self._slots.get, keys) if slot is not None]
        found = self._read(slots)
        for _ in range(_PATIENCE):
            if found is not None:
                break
            # A writer that was preempted within a publication goes on soon; a dead one never does.
            time.sleep(0.001)
            found = self._read(slots)
        self._last.update((ends.key, ends) for ends in found or () if ends.key > 0)
        there = [key for key in keys if key in self._slots]
        return {key: self._last[key] for key in there if key in self._last}

    def glance(self, ends: Ends) -> EndsGlance | None:
        """Return what tells whether these ends, which `get` gave, are published still; None where they are
        not by now.
        """
        generation, memory, shared = self._generation, self._bytes, self.shared
        slot = self._slots.get(ends.key)
        if slot is None:
            return None
        seen = {"map": memory, "len": len(memory), "slot": slot, "generation": generation, "values": ends}
        return EndsGlance(ffi.new("seg_seen *", seen | {"shared": _of_c(shared)}), (memory, shared))

    def sealed(self, key: int) -> dict[int, int]:
        """Return where segments of a shared log end that may have more bytes; see `SharedMap.sealed`."""
        slot, shared = self._slots.get(key), self.shared
        return {} if slot is None or shared is None else shared.sealed(slot, key)


class EndsGlance:
    """Looks whether one partition's ends are as they were seen: one call of C."""

    __slots__ = ("_memory", "_seen")

    def __init__(self, seen: Any, memory: tuple[Any, SharedMap | None]) -> None:
        self._seen, self._memory = seen, memory  # C reads the memory for as long as this object is there

    def unchanged(self) -> bool:
        """Return whether the ends are the same; False also where a publication is under way."""
        return bool(lib.seg_unchanged(self._seen))


def _of_c(shared: SharedMap | None) -> Any:
    return ffi.NULL if shared is None else shared.c


def _after(number: int) -> int:
    """Return the next number of an int64 counter: whatever the file says, it fits."""
    return (number + 1) & INT64_MAX


_FREE = Ends(0, 0, 0, 0, 0, 0, 0, 0)


def _create(files: Files, path: str) -> None:
    if files.exists(path):
        files.unlink(path)
    with files.open(path, write=True, create=True) as handle:
        in_reserve(lambda: files.allocate(handle, 0, STEP), STEP)
        _write_anew(files, handle)


def _wipe(files: Files, path: str, size: int) -> None:
    """Clear a file that readers may have mapped, so that nothing is published in it."""
    with files.open(path, write=True) as handle:
        files.allocate(handle, 0, size)  # fills holes in the file
        files.pwrite(handle, bytes(size - HEADER), HEADER)
        # A generation unlike any before: readers that have the file mapped look for slots anew.
        _write_anew(files, handle, secrets.randbits(62))


def _write_anew(files: Files, handle: Handle, generation: int = 0) -> None:
    header = ends_header.pack(0, files.boot(), generation, doubt=False)
    files.pwrite(handle, header, ends_header.FORMAT_AT)


def open_reader(files: Files, path: str) -> EndsReader | None:
    """Return the published ends; None where there is no such file, or the file holds an open store's ends
    from before the machine was booted. Raises OSError.
    """
    return None if ends_header.look(files, path).header is None else EndsReader(files, path)
