"""Reads, writes, cuts, syncs and maps what is in open files. On disk: the bytes that it is asked to write.

Threads: any; positions are handed in, so one `Handle` may serve many. Errors carry the handle's path.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from segstore._native import ffi, lent, lib
from segstore.files.handle import Handle, named
from segstore.files.stats import status
from segstore.sending.results import checked

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NO_COPY_RANGE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF})
_COPY_CHUNK = 1 << 20
_MOST_ERRNO = 4096


class Content:
    """Sizes and positions in bytes."""

    def pread(self, handle: Handle, size: int, position: int) -> bytes:
        """`size` bytes from `position`; fewer only at the end of the file. OSError as pread(2)."""
        try:
            data = os.pread(handle.fd, size, position)
            if len(data) == size or not data:
                return data
            parts, got = [data], len(data)
            while got < size and (more := os.pread(handle.fd, size - got, position + got)):
                parts.append(more)
                got += len(more)
        except OSError as e:
            raise named(e, handle.path) from None
        return b"".join(parts)

    def pread_into(self, handle: Handle, buffer: Buffer, position: int) -> int:
        """Fill `buffer` from `position`: bytes read, fewer only at its end. OSError as pread(2)."""
        with ffi.from_buffer("uint8_t[]", buffer, require_writable=True) as view:
            done = lib.seg_pread(handle.fd, view, len(view), position)
        return checked(done, handle)

    def pwrite(self, handle: Handle, data: Buffer, position: int) -> int:
        """Write all of `data` at `position`: its length. OSError as pwrite(2); a part may be written then."""
        with ffi.from_buffer("uint8_t[]", data) as view:
            done = lib.seg_pwrite(handle.fd, view, len(view), position)
        return checked(done, handle)

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers one after the other from `position`: bytes. OSError as `pwrite`."""
        with lent(buffers) as views:
            pointers, lengths = ffi.new("uint8_t *[]", views), ffi.new("int64_t[]", [len(v) for v in views])
            done = lib.seg_pwritev(handle.fd, pointers, lengths, len(views), position)
        return checked(done, handle)

    def seek_batch(self, handle: Handle, position: int, end: int, target: int, out: Any) -> int:
        """`seg_seek` (cdef.h) as it is: 1 found, 0 none below `end`, negative: -errno or a bad header."""
        return int(lib.seg_seek(handle.fd, position, end, target, out))

    def read_by(self, handle: Handle, call: Callable[[int], int]) -> int:
        """What `call` gives for the descriptor: C that reads for itself. OSError where that is -errno."""
        result = call(handle.fd)
        return checked(result, handle) if result > -_MOST_ERRNO else result

    def restamp(self, handle: Handle, end: int, base_offset: int, leader_epoch: int) -> int:
        """`seg_restamp` (cdef.h): the next offset; EBADMSG where a batch is none. OSError."""
        code = lib.seg_restamp(handle.fd, end, base_offset, leader_epoch)
        return checked(-errno.EBADMSG if code == lib.SEG_E_COLUMN else code, handle)

    def copy_range(self, source: Handle, position: int, target: Handle, at: int, count: int) -> int:
        """Copy `count` bytes from file to file, sharing blocks where the file system can. OSError.

        Bytes copied, fewer only at the end of the source; on an error a part may be written.
        """
        done = int(lib.seg_copy_range(target.fd, at, source.fd, position, count))
        if done < 0 and -done not in _NO_COPY_RANGE:
            checked(done, target)
        done = max(done, 0)
        while done < count:
            data = self.pread(source, min(_COPY_CHUNK, count - done), position + done)
            if not data:
                break
            done += self.pwrite(target, data, at + done)
        return done

    def truncate(self, handle: Handle, size: int) -> None:
        """Cut or extend (with a hole) the file to `size`. OSError as ftruncate(2)."""
        try:
            os.ftruncate(handle.fd, size)
        except OSError as e:
            raise named(e, handle.path) from None

    def allocate(self, handle: Handle, position: int, length: int) -> None:
        """Take disk blocks for `length` > 0 bytes from `position`, extending the file. OSError (ENOSPC)."""
        checked(lib.seg_fallocate(handle.fd, position, length), handle)

    def sync(self, handle: Handle) -> None:
        """Make the file's data durable; never repeated on failure. OSError as fdatasync(2)."""
        checked(lib.seg_fdatasync(handle.fd, handle.failed), handle)

    def start_sync(self, handle: Handle, position: int, length: int) -> None:
        """Let the disk begin with `length` bytes, so that a later `sync` has less to wait for. Only a hint:
        what goes wrong is told by that `sync`.
        """
        lib.seg_start_sync(handle.fd, position, length)

    def map(self, handle: Handle, length: int, *, write: bool = False) -> mmap.mmap:
        """A shared mapping of the first `length` > 0 bytes, which outlives the handle.

        OSError: EINVAL where the file is shorter (touching what is behind its end would be a SIGBUS), ENOMEM.
        """
        if not 0 < length <= status(handle).size:
            raise OSError(errno.EINVAL, f"can't map {length} bytes", handle.path)
        protection = mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ
        # Of a mapping with a descriptor, mmap.mmap keeps a duplicate open before Python 3.13.
        memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=protection)
        checked(lib.seg_map(ffi.from_buffer(memory), length, handle.fd, write), handle)
        return memory
