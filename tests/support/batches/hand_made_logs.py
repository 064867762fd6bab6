"""A log that several processes append to and sync, without a store: its part of a shared file, a segment, and
members.

`Member` is one of them in this process; `Process` is one in a process of its own, which runs this file and
evaluates what it is asked. A sync is one of Python's, so that tests can hold it: see `Member.sync`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from native_batches import Input
from oracle import Record
from places import environment
from waiting import PAUSE, until

from segstore._native import ffi, held, lib

KEY, GENERATION = 7, 1
SIZE = lib.SEG_SHARED_LOGS + 65536
WAITED = 0x80000000


def made(directory: Path, base: int = 0) -> Path:
    """Make the files of a log whose only segment begins at offset `base`; all of it is durable."""
    (directory / "shared").write_bytes(bytes(SIZE))
    for name in ("members", "segment"):
        (directory / name).touch()
    with Member(directory) as first:
        log, end = first.log, first.log.ends[0]
        log.key, log.by_log_only, log.sync_from, log.synced = KEY, GENERATION, -1, base
        end.generation, end.stable_offset = GENERATION, -1
        end.end.next_offset = end.end.base_offset = base
        log.current = 1 << 16
    return directory


def _closed(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


class Member:
    """A member in this process. Its appends take the log's lock, as the engine's do."""

    def __init__(self, directory: Path, host: bool = False, look_ms: int = 2, write: bool = True) -> None:
        self.directory, flags = directory, os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY)
        self.fd = os.open(directory / "segment", flags)
        self._members = os.open(directory / "members", os.O_RDWR | os.O_CLOEXEC)
        with (directory / "shared").open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        memory, self.here = held("uint8_t[]", self._map), ffi.new("uint8_t[1]", b"\1")
        self.c = ffi.new(
            "seg_member *",
            {"map": memory, "len": SIZE, "members_fd": self._members, "slot": -1, "look_ms": look_ms,
             "spins": 100, "here": self.here, "is_host": host},
        )  # fmt: skip
        self.slot = lib.seg_member_join(self.c, lib.SEG_SEATS)
        assert self.slot >= 0
        self.log = ffi.cast("seg_shared_log *", memory + lib.SEG_SHARED_LOGS)
        who = lib.SEG_OF_APPENDS if host else lib.SEG_OF_GUEST
        self.share = ffi.new(
            "seg_share *",
            {"member": self.c, "log": self.log, "key": KEY, "generation": GENERATION, "who": who},
        )
        self._memory = memory
        self.signals = 0
        """How many signals this process has got."""
        self.syncer = ffi.callback("int64_t(int32_t, int32_t *)", self.sync, error=lib.SEG_SLOW)

    def __enter__(self) -> Member:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        _closed(self._members)  # its byte lock goes
        _closed(self.fd)

    @property
    def word(self) -> int:
        """Return the word with which this member's appends take a lock."""
        return int(lib.seg_lock_word(self.c, self.share.who))

    @property
    def end(self) -> Any:
        """Return the record that is the log's end now."""
        word = int(self.log.current)
        return self.log.ends[2 * (word >> 8 & 0xFF) + (word & 0xFF)]

    def append(self, size: int = 10, count: int = 1) -> int:
        """Append batches of one record; return the offset behind them."""
        lock = ffi.addressof(self.log, "lock")
        self._take(lock)
        try:
            for _ in range(count):
                self._append(size)
            return int(self.end.end.next_offset)
        finally:
            lib.seg_lock_leave(self.c, lock, self.share.who)

    def _take(self, lock: Any) -> None:
        seen = ffi.new("uint64_t *")
        while lib.seg_lock_take(self.c, lock, self.share.who, 0, -1, seen) == -errno.EINTR:
            """A handler has run."""

    def _append(self, size: int) -> None:
        word, now = int(self.log.current), self.end
        records = [Record(0, 1, None, b"x" * size, [])]
        data, batches, _ = Input(records).encode(batch_bytes=1 << 24, capacity=size + 1000)
        out, headers = ffi.new("uint8_t[]", data), held("seg_batch *", batches)
        place = now.end.next_offset, 0, -1, now.end.position
        following = lib.seg_assign(out, len(data), headers, len(batches), *place)
        os.pwrite(self.fd, ffi.buffer(out, len(data)), now.end.position)
        mine = 1 if (word & 0xFFFF) == self.slot << 8 else 0
        record = self.log.ends[2 * self.slot + mine]
        ffi.memmove(ffi.addressof(record), ffi.addressof(now), ffi.sizeof("seg_shared_end"))
        record.end.position, record.end.next_offset = now.end.position + len(data), following
        self.log.current = ((word >> 16) + 1) << 16 | self.slot << 8 | mine

    def sync(self, fd: int, failed: Any) -> int:
        """Sync a file, as the directory's files ask: within `hold` or, behind the sync, within `hold_after`,
        wait for as long as that is there; `fail` has an errno. `syncs` gets a byte for each sync, `overlaps`
        one for a sync that begins within another one, and `begun` is made.
        """
        there = self.directory
        try:
            os.close(os.open(there / "syncing", os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            self._note("overlaps")
        (there / "begun").touch()
        self._while("hold")
        if (there / "fail").exists():
            failed[0] = int((there / "fail").read_text())
        else:
            os.fdatasync(fd)
        self._note("syncs")
        self._while("hold_after")
        (there / "syncing").unlink(missing_ok=True)
        return -int(failed[0])

    def _while(self, name: str) -> None:
        while (self.directory / name).exists():
            time.sleep(PAUSE)

    def _note(self, name: str) -> None:
        with (self.directory / name).open("ab") as file:
            file.write(b"x")

    def flush(self, upto: int = -1) -> int:
        """Return what seg_share_flush answers, for the log's end by default."""
        upto = int(self.end.end.next_offset) if upto < 0 else upto
        return self._again(lambda: lib.seg_share_flush(self.share, self.fd, self.syncer, upto))

    def _again(self, call: Callable[[], int]) -> int:
        before = self.signals
        while (code := int(call())) == -errno.EINTR and self.signals == before:
            """A second has passed."""
        return code

    def note_signal(self, number: int, frame: object) -> None:
        self.signals += 1

    def durably(self, appends: int) -> list[int]:
        """Append, and flush each append; return the answers of flushes that are not 0."""
        return [code for _ in range(appends) if (code := self.flush(self.append()))]

    def begin(self) -> int:
        """Return what seg_share_sync_begin answers."""
        return self._again(lambda: lib.seg_share_sync_begin(self.share))

    def finish(self, synced: int = -1, failed: int = 0) -> None:
        """Let members sync again."""
        lib.seg_share_sync_end(self.share, synced, failed)


class Process:
    """A member in a process of its own, with the arguments of `Member`."""

    def __init__(self, directory: Path, *, variables: dict[str, str] | None = None, **arguments: Any) -> None:
        command = [sys.executable, __file__, str(directory), json.dumps(arguments)]
        env = {**environment(), **(variables or {})}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        self.pid = self._process.pid
        self.slot, self.word = self.answer()

    def begin(self, expression: str) -> None:
        """Have the process evaluate an expression of `member`; `answer` returns what it gives."""
        assert self._process.stdin is not None
        print(expression, file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, expression: str) -> Any:
        self.begin(expression)
        return self.answer()

    def looks(self) -> int:
        """Return how often the process has gone to sleep."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("voluntary_ctxt_switches:")[1].split()[0])

    def has_looked(self, times: int = 20) -> None:
        """Wait until the process, which waits, has woken a number of times."""
        first = self.looks()
        until(lambda: self.looks() >= first + times)

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stop the process, and wait until it is stopped."""
        self.send(signal.SIGSTOP)
        until(lambda: Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")

    def kill(self) -> None:
        """Kill the process, if it lives, and wait for its end."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    member = Member(Path(sys.argv[1]), **json.loads(sys.argv[2]))
    signal.signal(signal.SIGUSR1, member.note_signal)
    print(json.dumps([member.slot, member.word]), flush=True)
    for line in sys.stdin:
        print(json.dumps(eval(line, {"member": member})), flush=True)


if __name__ == "__main__":
    main()
