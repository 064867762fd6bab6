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
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import secrets
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from segstore._native import ffi, held, lib
from segstore.files import Files, Handle
from segstore.mutex import Mutex, calls_out
from segstore.storage.meta import ends_header

HEADER = ends_header.SIZE
SLOT = lib.SEG_ENDS_SLOT
STEP = 65536
_LONGEST_WAIT = 86_400.0  # seconds
_SPINS = 1000
_PATIENCE = 50  # milliseconds
_INT63 = (1 << 63) - 1


class Ends(NamedTuple):
    """What is published of one partition; `recovery_point` is its complement where a sync has failed."""

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
        """The recovery point, whether a sync has failed or not."""
        return max(self.recovery_point, ~self.recovery_point)


def slot_key(topic_id: str, topic: str, partition: int) -> int:
    """The partition's key: 63 bits, never 0."""
    digest = hashlib.blake2b(f"{topic_id} {topic} {partition}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 1) | 1


class _Mapped:
    """The mapping that writer and readers share: keys of slots, and the look-up of a key."""

    def __init__(self, files: Files, path: str, *, write: bool) -> None:
        self._files, self._path, self._write = files, path, write
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

    def _read_generation(self) -> int:
        return int(struct.unpack_from("<q", self._memory, ends_header.GENERATION_AT)[0])

    def _scan_keys(self) -> dict[int, int]:
        count = (self._size - HEADER) // SLOT
        keys = np.frombuffer(self._memory, np.int64, count * 8, HEADER)[::8]
        used = np.flatnonzero(keys)
        return dict(zip(keys[used].tolist(), used.tolist(), strict=True))

    @property
    def checked(self) -> bool:
        """Whether header and slots have checks."""
        header = ends_header.parse(self._memory[:HEADER])
        return header is None or header.checked

    def damaged(self) -> list[int]:
        """The slots whose check is wrong; none while a publication is under way, also one that a killed
        writer never ends.
        """
        keys = (self._numbers(list(range((self._size - HEADER) // SLOT))) or [])[::8]
        return [slot for slot, key in enumerate(keys) if key == lib.SEG_ENDS_DAMAGED]

    @property
    def cut_short(self) -> bool:
        """Whether a publication is under way, or was when its writer was killed."""
        return bool(self._sequence() % 2)

    def _sequence(self) -> int:
        return int(struct.unpack_from("<q", self._memory, 0)[0])

    def keys(self) -> set[int]:
        """Keys that have a slot."""
        return set(self._slots)

    @property
    def nonce(self) -> int:
        """The number that the last clean close wrote; the clean shutdown marker holds the same."""
        return int(struct.unpack_from("<q", self._memory, ends_header.NONCE_AT)[0])

    @property
    def publications(self) -> int:
        """How often ends were published, modulo 2^32."""
        return int(struct.unpack_from("<I", self._memory, ends_header.PUBLICATIONS_AT)[0])

    @calls_out  # a signal handler that runs while this sleeps may call the store
    def wait(self, seen: int, seconds: float) -> None:
        """Return when `publications` is no longer `seen`, after `seconds`, or at a signal."""
        code = lib.seg_await(self._bytes, self._size, seen, max(0, int(min(seconds, _LONGEST_WAIT) * 1e9)))
        if code < 0 and -code not in (errno.ETIMEDOUT, errno.EINTR):
            raise OSError(-code, os.strerror(-code), self._path)

    def wake(self) -> None:
        """Have all threads in `wait`, in other processes too, return early. Raises OSError."""
        code = lib.seg_wake(self._bytes, self._size)
        if code < 0:
            raise OSError(-code, os.strerror(-code), self._path)

    def _read(self, slots: list[int]) -> list[Ends] | None:
        numbers = self._numbers(slots)
        if numbers is None:
            return None
        return [Ends(*numbers[at : at + 8]) for at in range(0, len(numbers), 8)]

    def _numbers(self, slots: list[int]) -> list[int] | None:
        """The content of some slots, eight numbers each, the key first; None where a publication does not
        end.
        """
        n = len(slots)
        values = ffi.new("int64_t[]", 8 * n)
        code = lib.seg_snapshot(self._bytes, self._size, ffi.new("int64_t[]", slots), values, n, _SPINS)
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
        elif not self.found:
            _wipe(files, path, there.size)
        self._fill_up(files, path)
        super().__init__(files, path, write=True)
        self._boot = int(struct.unpack_from("<q", self._memory, ends_header.BOOT_AT)[0])
        self.lock = Mutex()
        self._gathered: dict[int, Ends] | None = None
        self._claimed = False  # whether a slot was claimed, in which nothing may be published yet
        self.was_checked = self.checked
        self._settle()
        self._free = self._find_free()

    def _fill_up(self, files: Files, path: str) -> None:
        """Extend the file to a size of whole steps again."""
        size = files.size(path)
        if size % STEP:
            self.damage.append(f"its size is {size} bytes, not a multiple of {STEP}")
            with files.open(path, write=True) as handle:
                files.allocate(handle, size, STEP - size % STEP)

    def _settle(self) -> None:
        """Make the sequence even, give every slot its check, and free damaged slots."""
        # A writer that was killed within a publication left the sequence odd, at which nothing can be read.
        torn = self.cut_short
        if torn:
            struct.pack_into("<q", self._memory, 0, _after(self._sequence()))
        if not self.was_checked:
            claims = self._read(list(range((self._size - HEADER) // SLOT)))
            assert claims is not None
            flat = [value for ends in claims for value in (ends if ends.key else _FREE)]
            lib.seg_publish(self._bytes, self._size, list(range(len(claims))), flat, len(claims))
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
        """What is published under `key`."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        found = self._read([slot])
        return found[0] if found and found[0].key == key else None

    def claim(self, key: int) -> int:
        """The slot of `key`, taken from the free slots if it has none yet: then nothing is published in it
        until its owner does. Raises OSError where there is no room.
        """
        with self.lock:
            if key not in self._slots:
                if not self._free:
                    self._grow()
                self._slots[key] = self._free.pop()
                self._claimed = True
            return self._slots[key]

    def begin_empty(self, key: int) -> None:
        """Publish a partition that was just made, and so is empty. Raises OSError, as `claim`."""
        if key not in self._slots:
            self.publish([self.claim(key)], [Ends(key, 0, 0, 0, 0, 0, 0, 0)])

    def _grow(self) -> None:
        with self._files.open(self._path, write=True) as handle:
            self._files.allocate(handle, self._size, STEP)
        slots = self._slots
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
            with self.lock:
                self._free.append(slot)
                self._bump_generation()

    def clear(self) -> None:
        """Forget all that is published, since another writer, such as a broker, used the directory."""
        for key in self.keys():
            self.release(key)

    def publish(self, slots: list[int], ends: list[Ends]) -> None:
        """Make the ends of several partitions visible at once."""
        with self.lock:
            if self._gathered is not None:
                self._gathered.update(zip(slots, ends, strict=True))
                return
            if any(
                end.key and self._slots.get(end.key) != slot for slot, end in zip(slots, ends, strict=True)
            ):
                # A topic was deleted meanwhile: its slot may be another partition's.
                pairs = zip(slots, ends, strict=True)
                held = [(s, e) for s, e in pairs if not e.key or self._slots.get(e.key) == s]
                if not held:
                    return
                slots, ends = [s for s, _ in held], [e for _, e in held]
            flat = [value for end in ends for value in end]
            lib.seg_publish(self._bytes, self._size, slots, flat, len(slots))
            if self._claimed:  # readers look for slots anew
                self._bump_generation()
                self._claimed = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block at whose end all that is published within becomes visible at once. One thread at a time."""
        self._gathered = {}
        try:
            yield
        finally:
            with self.lock:
                gathered, self._gathered = self._gathered, None
            self.publish(list(gathered), list(gathered.values()))

    def set_nonce(self, nonce: int) -> None:
        """Tie the published ends to a clean shutdown marker; 0 for an open store."""
        self._doubt = self._doubt and not nonce
        self._write_header(nonce)

    def _write_header(self, nonce: int) -> None:
        held = ends_header.pack(nonce, self._boot, self._read_generation(), doubt=self._doubt)
        self._memory[ends_header.FORMAT_AT : HEADER] = held

    @property
    def doubted(self) -> bool:
        """Whether a recovery failed, since the last clean close, of a partition of which nothing is
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
        self._files.sync_dir(os.path.dirname(self._path))

    def _bump_generation(self) -> None:
        struct.pack_into("<q", self._memory, ends_header.GENERATION_AT, _after(self._read_generation()))


class EndsReader(_Mapped):
    """The side of another process, or of a reader in this one: it takes no lock and changes nothing."""

    def __init__(self, files: Files, path: str) -> None:
        super().__init__(files, path, write=False)
        self._last: dict[int, Ends] = {}

    def get(self, key: int) -> Ends | None:
        """What is published under `key`; None where nothing is.

        A writer that was killed in the middle of a publication leaves the sequence odd: then the last
        consistent values that this reader saw are given.
        """
        return self.get_all([key]).get(key)

    def get_all(self, keys: list[int]) -> dict[int, Ends]:
        """What is published under some keys, all at one moment; a dead writer's as `get` says."""
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


def _after(number: int) -> int:
    """The next number of an int64 counter: whatever the file says, it fits."""
    return (number + 1) & _INT63


_FREE = Ends(0, 0, 0, 0, 0, 0, 0, 0)


def _create(files: Files, path: str) -> None:
    if files.exists(path):
        files.unlink(path)
    with files.open(path, write=True, create=True) as handle:
        files.allocate(handle, 0, STEP)
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
    """The published ends; None where there is no such file, or the file holds an open store's ends from
    before the machine was booted. Raises OSError.
    """
    return None if ends_header.look(files, path).header is None else EndsReader(files, path)
