"""The system calls on files: open, read, write and sync regular files, and change directories.

New files get `file_mode`, independent of the umask. New directories get `directory_mode`: everyone who may
read may also search. Positions are arguments, so that one `Handle` may serve many threads. Errors carry the
path. Threads: any. The headers of `_native/contract/` declare the C functions.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from segstore._native import ffi, lent, lib
from segstore.files.handle import Handle, Path, failed, named
from segstore.files.native_write import NATIVE, NativeWrite, OwnWrite
from segstore.files.stats import status_of
from segstore.idle_files import made_room
from segstore.sending.results import checked

if TYPE_CHECKING:
    from typing_extensions import Buffer

FILE_MODE = 0o600
"""The default mode of new files: only their owner may read and write."""


class Opening:
    """Opens and creates files and directories; `file_mode` is the mode of new files."""

    file_mode = FILE_MODE

    @property
    def directory_mode(self) -> int:
        return self.file_mode | (self.file_mode & 0o444) >> 2

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> Handle:
        """Open a regular file to read, or, if `write`, to read and write. If `create`, a missing file is
        created, with `file_mode`.

        Raises OSError: ELOOP for a symbolic link, EINVAL for any other file that is not regular.
        """
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        result = ffi.new("seg_status *")
        # O_NONBLOCK is set, because the open of a FIFO must not wait for its other end. Regular files ignore
        # the flag.
        try:
            handle = Handle(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, self.file_mode, result)
        except PermissionError:
            # The open of a device raises PermissionError, too, if its file system is mounted "nodev".
            if stat.S_IFMT(status_of(path).mode) in (stat.S_IFBLK, stat.S_IFCHR):
                raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path)) from None
            raise
        if not stat.S_ISREG(result.mode):
            handle.close()
            raise OSError(errno.EINVAL, "Not a regular file", handle.path)
        if create and not result.size and _is_narrower(result.mode, self.file_mode):
            os.fchmod(handle.fd, self.file_mode)
        return handle

    def mkdir(self, path: Path) -> None:
        """Make a directory with the mode `directory_mode`. Raises OSError, like mkdir(2)."""
        os.mkdir(path, self.directory_mode)
        made = status_of(path).mode
        if _is_narrower(made, self.directory_mode):
            os.chmod(path, stat.S_IMODE(made) | self.directory_mode)


def _is_narrower(mode: int, wanted: int) -> bool:
    """Return whether `mode` is `wanted` without some of its bits, as a umask would leave it. A mode with
    other bits comes from somebody else.
    """
    bits = mode & 0o777
    return bits != wanted and bits | wanted == wanted


# --- content -----------------------------------------------------------------------------------

# `FileContent` reads, writes, truncates, syncs and maps the content of open files.

_NO_COPY_RANGE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF})
_COPY_CHUNK = 1 << 20
_MOST_ERRNO = 4096


class FileContent:
    """Calls on the content of open files. Sizes and positions are in bytes."""

    def pread(self, handle: Handle, size: int, position: int) -> bytes:
        """Return `size` bytes from `position` on, or fewer at the end of the file. Raises OSError, like
        pread(2).
        """
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
        """Fill `buffer` with bytes from `position` on. Return their number, which is smaller than the buffer
        only at the end of the file. Raises OSError, like pread(2).
        """
        with ffi.from_buffer("uint8_t[]", buffer, require_writable=True) as view:
            done = lib.seg_pread(handle.fd, view, len(view), position)
        return checked(done, handle)

    def pwrite(self, handle: Handle, data: Buffer, position: int) -> int:
        """Write all of `data` at `position`, and return its length. Raises OSError, like pwrite(2); a part
        may be written then.
        """
        with ffi.from_buffer("uint8_t[]", data) as view:
            done: int = lib.seg_pwrite(handle.fd, view, len(view), position)
        return done if done >= 0 else checked(done, handle)

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers, one after the other, from `position` on, and return the number of bytes. Raises
        OSError, like pwritev(2); a part may be written then.
        """
        with lent(buffers) as views:
            pointers, lengths = ffi.new("uint8_t *[]", views), ffi.new("int64_t[]", [len(v) for v in views])
            done = lib.seg_pwritev(handle.fd, pointers, lengths, len(views), position)
        return checked(done, handle)

    def native_write(self, handle: Handle) -> NativeWrite:
        """Return the function with which C appends batches to this file."""
        own = type(self)
        is_plain = own.pwrite is FileContent.pwrite and own.pwritev is FileContent.pwritev
        return NATIVE if is_plain else OwnWrite(self, handle)

    def native_sync(self, handle: Handle) -> Any:
        """Return the C function with which C (log.h) syncs this file. NULL means `seg_fdatasync`.

        Return None if a subclass overrides `sync`, because C would bypass that method.
        """
        return ffi.NULL if type(self).sync is FileContent.sync else None

    def seek_batch(self, handle: Handle, position: int, end: int, target: int, out: Any) -> int:
        """Walk the batches from `position` on, and write the header of the first batch that has offset
        `target` or a later offset to `out` (`seg_seek`, batch.h). Return 1, or 0 if there is no such batch
        below `end`, or a negative number if a read has failed (-errno) or a header is bad.
        """
        return int(lib.seg_seek(handle.fd, position, end, target, out))

    def read_one(self, handle: Handle, segment: Any, offset: int, point: Any) -> int:
        """Return the result of `seg_read_one` (segment.h) for a `seg_segment *`: 1, or 0 if C can't answer
        and the caller must read in Python.
        """
        result: int = lib.seg_read_one(handle.fd, segment, offset, point)
        return result

    def read_many(self, handle: Handle, segment: Any, offsets: Any, n: int, point: Any, out: Any) -> int:
        """Return the result of `seg_read_many` (segment.h): the number of offsets whose records were read."""
        result: int = lib.seg_read_many(handle.fd, segment, offsets, n, point, out)
        return result

    def read_range(self, handle: Handle, segment: Any, *how: Any) -> int:
        """Return the result of `seg_read_range` (segment.h): 1, or 0 if C can't answer and the caller must
        read in Python.
        """
        result: int = lib.seg_read_range(handle.fd, segment, *how)
        return result

    def read_by(self, handle: Handle, call: Callable[[int], int]) -> int:
        """Return `call(descriptor)`, the result of a C function that reads the file itself. Raises OSError if
        the result is -errno.
        """
        result = call(handle.fd)
        return checked(result, handle) if result > -_MOST_ERRNO else result

    def restamp(self, handle: Handle, end: int, base_offset: int, leader_epoch: int) -> int:
        """Set the offsets, from `base_offset` on, and the leader epoch of the batches in the first `end`
        bytes of a file. Return the offset after the last batch (`seg_restamp`, staging.h). Raises OSError:
        EBADMSG if the bytes are no batches.
        """
        code = lib.seg_restamp(handle.fd, end, base_offset, leader_epoch)
        return checked(-errno.EBADMSG if code == lib.SEG_E_COLUMN else code, handle)

    def copy_range(self, source: Handle, position: int, target: Handle, at: int, count: int) -> int:
        """Copy `count` bytes from file to file, and share blocks if the file system can. Return the number of
        copied bytes, which is smaller than `count` only at the end of the source. Raises OSError; a part may
        be written then.
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
        """Truncate the file to `size`, or extend it with a hole. Raises OSError, like ftruncate(2)."""
        try:
            os.ftruncate(handle.fd, size)
        except OSError as e:
            raise named(e, handle.path) from None

    def allocate(self, handle: Handle, position: int, length: int) -> None:
        """Allocate disk blocks for `length` > 0 bytes from `position` on; this may make the file longer.
        Raises OSError (ENOSPC).
        """
        code = lib.seg_fallocate(handle.fd, position, length)
        if code < 0:
            raise failed(code, handle.path)

    def forbid_copy_on_write(self, handle: Handle) -> None:
        """Let the file system (btrfs) write an empty file in place from now on. Raises OSError."""
        code = lib.seg_no_copy_on_write(handle.fd)
        if code < 0:
            raise failed(code, handle.path)

    def sync(self, handle: Handle) -> None:
        """Make the file's data durable; a failed call is never repeated. Raises OSError, like
        fdatasync(2).
        """
        code = lib.seg_fdatasync(handle.fd, handle.failed)
        if code < 0:
            raise failed(code, handle.path)

    def start_sync(self, handle: Handle, position: int, length: int) -> None:
        """Let the disk begin to write `length` bytes, so that a later `sync` waits less. The later `sync`
        raises the errors of these writes.
        """
        lib.seg_start_sync(handle.fd, position, length)

    def map(self, handle: Handle, length: int, *, write: bool = False) -> mmap.mmap:
        """Return a shared memory mapping of the first `length` > 0 bytes. The mapping stays valid after the
        handle is closed.

        Raises OSError: ENOMEM, and EINVAL if the file is shorter than `length`, because an access to pages
        after its end would raise SIGBUS.
        """
        result = ffi.new("seg_status *")
        code = lib.seg_fstat(handle.fd, result)
        if code < 0:
            raise failed(code, handle.path)
        if not 0 < length <= result.size:
            raise OSError(errno.EINVAL, f"can't map {length} bytes", handle.path)
        protection = mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ
        # mmap.mmap(fd) is not used, because before Python 3.13 it keeps a duplicate of the descriptor open.
        memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=protection)
        code = lib.seg_map(ffi.from_buffer(memory), length, handle.fd, write)
        if code < 0:
            raise failed(code, handle.path)
        return memory


# --- directories -------------------------------------------------------------------------------

# `Directories` creates, renames, removes and lists names in directories, and makes the names durable.


class Directories:
    """Calls on names in directories. Each change is atomic, and durable after `sync_dir` of its directory."""

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable. Raises OSError, like fsync(2)."""
        handle = Handle(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle.fd)
        except OSError as e:
            raise named(e, handle.path) from None
        finally:
            handle.close()

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory; a file at `target` is replaced atomically. Raises OSError, like
        rename(2).
        """
        os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Make `target` a hard link to the file at `source`. Raises OSError, like link(2): EEXIST if `target`
        exists.
        """
        os.link(source, target, follow_symlinks=False)

    def unlink(self, path: Path) -> None:
        """Remove a file's path. Raises OSError, like unlink(2)."""
        os.unlink(path)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory. Raises OSError, like rmdir(2)."""
        os.rmdir(path)

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, in arbitrary order. Raises OSError, like opendir(3)."""
        while True:
            try:
                return os.listdir(path)
            except OSError as error:
                if not made_room(error):
                    raise

    def directories(self, path: Path) -> list[str]:
        """Return the names in a directory that are directories, or symbolic links to directories. Raises
        OSError, like opendir(3).
        """
        while True:
            try:
                with os.scandir(path) as entries:
                    return [entry.name for entry in entries if entry.is_dir()]
            except OSError as error:
                if not made_room(error):
                    raise

    def irregular(self, path: Path) -> list[str]:
        """Return the names in a directory that are not regular files. Raises OSError, like opendir(3)."""
        while True:
            try:
                with os.scandir(path) as entries:
                    return [entry.name for entry in entries if not entry.is_file(follow_symlinks=False)]
            except OSError as error:
                if not made_room(error):
                    raise
