"""The only module that opens, writes, syncs, maps and renames files: the seam where tests inject faults.

On disk: no file of its own; `write_atomic` uses "<path>.tmp" beside the file that it replaces.
Threads: any; positions are handed in and nothing is cached, so one `Handle` may serve many threads.
Errors of the system pass through as the OSError that they are, with the path.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import stat
import uuid
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from segstore import locks
from segstore._native import ffi, lib
from segstore.sending import Sending

if TYPE_CHECKING:
    from typing_extensions import Buffer

Path = str | os.PathLike[str]

_NO_COPY_RANGE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF})
_COPY_CHUNK = 1 << 20
_TEMPORARY = ".tmp"
_MOST_ERRNO = 4096
FILE_MODE = 0o600
"""Of new files, unless another one is asked for: nobody else reads them."""
_MAX_NAME = 255  # bytes that Linux file systems allow in one name


class Handle:
    """An open regular file. The descriptor is closed with the last reference at the latest."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd, self.path = fd, path

    def fileno(self) -> int:
        """The descriptor, -1 once closed."""
        return self.fd

    def close(self) -> None:
        """Close the descriptor; further calls do nothing. OSError as close(2)."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Files(Sending):
    """Files of the operating system, by path or `Handle`; sizes and positions in bytes.

    What is made has `file_mode`, or for directories that and the right to enter for whoever may read,
    whatever the umask is.
    """

    file_mode = FILE_MODE

    @property
    def directory_mode(self) -> int:
        return self.file_mode | (self.file_mode & 0o444) >> 2

    # --- open files -------------------------------------------------------

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> Handle:
        """Open a regular file to read, or also to write, made (`file_mode`) where `create` and missing.

        OSError: ELOOP for a symbolic link, EINVAL for what is no regular file.
        """
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        # O_NONBLOCK: opening a FIFO must not wait for its other end; files take no notice of it.
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, self.file_mode)
        handle, there = Handle(fd, os.fspath(path)), os.fstat(fd)
        if not stat.S_ISREG(there.st_mode):
            handle.close()
            raise OSError(errno.EINVAL, "Not a regular file", handle.path)
        if create and not there.st_size and _is_narrower(there.st_mode, self.file_mode):
            os.fchmod(fd, self.file_mode)
        return handle

    def open_anew(self, path: Path) -> Handle:
        """Open a new, empty file to read and write. What had its name loses it, and keeps its bytes: they may
        have another name. OSError.
        """
        if self.exists(path):
            self.unlink(path)
        return self.open(path, write=True, create=True)

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
            raise _named(e, handle.path) from None
        return b"".join(parts)

    def pread_into(self, handle: Handle, buffer: Buffer, position: int) -> int:
        """Fill `buffer` from `position`: bytes read, fewer only at its end. OSError as pread(2)."""
        view = ffi.from_buffer("uint8_t[]", buffer, require_writable=True)
        return _checked(lib.seg_pread(handle.fd, view, len(view), position), handle.path)

    def pwrite(self, handle: Handle, data: Buffer, position: int) -> int:
        """Write all of `data` at `position`: its length. OSError as pwrite(2); a part may be written then."""
        view = ffi.from_buffer("uint8_t[]", data)
        return _checked(lib.seg_pwrite(handle.fd, view, len(view), position), handle.path)

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers one after the other from `position`: bytes. OSError as `pwrite`."""
        views = [ffi.from_buffer("uint8_t[]", buffer) for buffer in buffers]
        pointers, lengths = ffi.new("uint8_t *[]", views), ffi.new("int64_t[]", [len(v) for v in views])
        return _checked(lib.seg_pwritev(handle.fd, pointers, lengths, len(views), position), handle.path)

    def seek_batch(self, handle: Handle, position: int, end: int, target: int, out: Any) -> int:
        """`seg_seek` (cdef.h) as it is: 1 found, 0 none below `end`, negative: -errno or a bad header."""
        return int(lib.seg_seek(handle.fd, position, end, target, out))

    def read_by(self, handle: Handle, call: Callable[[int], int]) -> int:
        """What `call` gives for the descriptor: C that reads for itself. OSError where that is -errno."""
        result = call(handle.fd)
        return _checked(result, handle.path) if result > -_MOST_ERRNO else result

    def truncate(self, handle: Handle, size: int) -> None:
        """Cut or extend (with a hole) the file to `size`. OSError as ftruncate(2)."""
        try:
            os.ftruncate(handle.fd, size)
        except OSError as e:
            raise _named(e, handle.path) from None

    def allocate(self, handle: Handle, position: int, length: int) -> None:
        """Take disk blocks for `length` > 0 bytes from `position`, extending the file. OSError (ENOSPC)."""
        _checked(lib.seg_fallocate(handle.fd, position, length), handle.path)

    def sync(self, handle: Handle) -> None:
        """Make the file's data durable; never repeated on failure. OSError as fdatasync(2)."""
        _checked(lib.seg_fdatasync(handle.fd), handle.path)

    def start_sync(self, handle: Handle, position: int, length: int) -> None:
        """Let the disk begin with `length` bytes, so that a later `sync` has less to wait for. Only a hint:
        what goes wrong is told by that `sync`.
        """
        lib.seg_start_sync(handle.fd, position, length)

    def map(self, handle: Handle, length: int, *, write: bool = False) -> mmap.mmap:
        """A shared mapping of the first `length` > 0 bytes, which outlives the handle.

        OSError: EINVAL where the file is shorter (touching what is behind its end would be a SIGBUS), ENOMEM.
        """
        if not 0 < length <= os.fstat(handle.fd).st_size:
            raise OSError(errno.EINVAL, f"can't map {length} bytes", handle.path)
        protection = mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ
        # Of a mapping with a descriptor, mmap.mmap keeps a duplicate open before Python 3.13.
        memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=protection)
        _checked(lib.seg_map(ffi.from_buffer(memory), length, handle.fd, write), handle.path)
        return memory

    # --- names --------------------------------------------------------------

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable. OSError as fsync(2)."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as e:
            raise _named(e, os.fspath(path)) from None
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing a file at `target` in one step. OSError as rename(2)."""
        os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give the file at `source` a second name. OSError as link(2), EEXIST where there is one."""
        os.link(source, target, follow_symlinks=False)

    def unlink(self, path: Path) -> None:
        """Remove a file's name. OSError as unlink(2)."""
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        """Make a directory (`directory_mode`). OSError as mkdir(2)."""
        os.mkdir(path, self.directory_mode)
        made = os.lstat(path).st_mode
        if _is_narrower(made, self.directory_mode):
            os.chmod(path, stat.S_IMODE(made) | self.directory_mode)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory. OSError as rmdir(2)."""
        os.rmdir(path)

    def listdir(self, path: Path) -> list[str]:
        """The names in a directory, in no order. OSError as opendir(3)."""
        return os.listdir(path)

    def directories(self, path: Path) -> list[str]:
        """The names in a directory that are directories, or symbolic links to such. OSError as opendir(3)."""
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def is_symlink(self, path: Path) -> bool:
        """Whether this is a symbolic link. OSError as lstat(2)."""
        return stat.S_ISLNK(os.lstat(path).st_mode)

    def mode(self, path: Path) -> int:
        """Who may do what with a file or directory, nine bits. OSError as lstat(2)."""
        return stat.S_IMODE(os.lstat(path).st_mode) & 0o777

    def check_directory(self, path: Path) -> None:
        """Nothing, where this is a directory or is missing. OSError: ELOOP for a symbolic link (what
        is behind it is another's), ENOTDIR.
        """
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            number = errno.ELOOP if stat.S_ISLNK(mode) else errno.ENOTDIR
            what = "A symbolic link" if stat.S_ISLNK(mode) else "Something else"
            raise OSError(number, f"{what} in a directory's place", os.fspath(path))

    def size(self, file: Path | Handle) -> int:
        """Bytes of a file by path (of a symbolic link itself) or handle. OSError as stat(2)."""
        return (os.fstat(file.fd) if isinstance(file, Handle) else os.lstat(file)).st_size

    def identity(self, file: Path | Handle) -> tuple[int, ...]:
        """What tells a file that nobody writes any more from another one that has got its name: inode, size,
        time of change. OSError as stat(2).
        """
        stat_ = os.fstat(file.fd) if isinstance(file, Handle) else os.lstat(file)
        return stat_.st_ino, stat_.st_size, stat_.st_mtime_ns

    def inode(self, file: Path | Handle) -> int:
        """Which file this is, as long as it is there. OSError as stat(2)."""
        return (os.fstat(file.fd) if isinstance(file, Handle) else os.lstat(file)).st_ino

    def links(self, path: Path) -> int:
        """How many names a file has (hard links): what is written to it, all of them see. OSError."""
        return os.lstat(path).st_nlink

    def changed(self, handle: Handle) -> int:
        """When a file's bytes or names were last changed (its ctime, which nobody can set), ns. OSError."""
        return os.fstat(handle.fd).st_ctime_ns

    def modified(self, path: Path) -> int:
        """When a file or directory was last changed, ns since the epoch; 0 where there is none. OSError."""
        try:
            return os.lstat(path).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def set_modified(self, handle: Handle, ns: int) -> None:
        """Let a file seem to be last changed then, ns since the epoch. OSError as utimensat(2)."""
        os.utime(handle.fd, ns=(ns, ns))

    def exists(self, path: Path) -> bool:
        """Whether anything has this name. OSError where that can't be told (EACCES)."""
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    # --- whole files --------------------------------------------------------

    def read_file(self, path: Path, limit: int = 1 << 26) -> bytes:
        """All of a file of at most `limit` bytes. OSError: EFBIG where it is larger."""
        with self.open(path) as handle:
            size = self.size(handle)
            data = self.pread(handle, size + 1, 0) if size <= limit else b""
        if max(size, len(data)) > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", os.fspath(path))
        return data

    def write_atomic(self, path: Path, data: Buffer, *, sync: bool = True) -> None:
        """Replace a file, or make it: old or new content, never a mixture; durable where `sync`. OSError."""
        target = os.fspath(path)
        temporary = _temporary(target)
        try:
            with self.open_anew(temporary) as handle:
                self.pwrite(handle, data, 0)
                if sync:
                    self.sync(handle)
            self.rename(temporary, target)
        except OSError:
            # The first error says more than one of tidying up; the next write takes the name again.
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        if sync:
            self.sync_dir(os.path.dirname(target) or ".")

    def take_own(self, path: Path) -> None:
        """Before a file is written in place: where it has other names (hard links), which would see that, a
        durable copy takes this name. OSError.
        """
        if self.links(path) < 2:
            return
        target = os.fspath(path)
        temporary = _temporary(target)
        with self.open(target) as source, self.open_anew(temporary) as copy:
            self.copy_range(source, 0, copy, 0, self.size(source))
            self.sync(copy)
        self.rename(temporary, target)
        self.sync_dir(os.path.dirname(target) or ".")

    def restamp(self, handle: Handle, end: int, base_offset: int, leader_epoch: int) -> int:
        """`seg_restamp` (cdef.h): the next offset; EBADMSG where a batch is none. OSError."""
        code = lib.seg_restamp(handle.fd, end, base_offset, leader_epoch)
        return _checked(-errno.EBADMSG if code == lib.SEG_E_COLUMN else code, handle.path)

    def copy_range(self, source: Handle, position: int, target: Handle, at: int, count: int) -> int:
        """Copy `count` bytes from file to file, sharing blocks where the file system can. OSError.

        Bytes copied, fewer only at the end of the source; on an error a part may be written.
        """
        done = int(lib.seg_copy_range(target.fd, at, source.fd, position, count))
        if done < 0 and -done not in _NO_COPY_RANGE:
            _checked(done, target.path)
        done = max(done, 0)
        while done < count:
            data = self.pread(source, min(_COPY_CHUNK, count - done), position + done)
            if not data:
                break
            done += self.pwrite(target, data, at + done)
        return done

    # --- locks --------------------------------------------------------------

    def lock(self, path: Path) -> Handle:
        """Lock a file (made where missing), which then holds our pid as text, until the handle is closed.

        BlockingIOError where anybody, a live Kafka broker too, holds a lock on it; EMLINK where the file has
        another name, under which it may be anything; other OSErrors as `open`.
        """
        handle = self.open(path, write=True, create=True)
        try:
            if self.links(path) > 1:
                raise OSError(errno.EMLINK, "A lock file that has another name")
            locks.take(handle)
            text = str(os.getpid()).encode()
            self.pwrite(handle, text, 0)
            self.truncate(handle, len(text))
        except OSError as e:
            handle.close()
            raise _named(e, handle.path) from None
        return handle

    def boot(self) -> int:
        """A number of 63 bits that a start of the machine has, and no other; 0 where it can't be told."""
        return _boot()

    def lock_holder(self, path: Path) -> int | None:
        """The pid that has locked the file, 0 where it can't be told, None where nobody has. OSError."""
        try:
            handle = self.open(path)
        except FileNotFoundError:
            return None
        with handle:
            pid = locks.holder(handle.fd)
            if pid is None or pid > 0:
                return pid
            text = self.pread(handle, 20, 0)
        return int(text) if text.isdigit() else 0

    def is_locked(self, path: Path) -> bool:
        """Whether anybody holds a lock on the file; False where it is missing. OSError as `open`."""
        return self.lock_holder(path) is not None


@cache
def _boot() -> int:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return uuid.UUID(file.read().strip()).int & (1 << 63) - 1
    except (OSError, ValueError):
        return 0


def _is_narrower(mode: int, wanted: int) -> bool:
    """Whether the umask took something of it away. What was made by others with other rights stays so."""
    held = mode & 0o777
    return held != wanted and held | wanted == wanted


def _temporary(target: str) -> str:
    """The name beside `target` that its next content is written under."""
    directory, name = os.path.split(target)
    if len(os.fsencode(name)) + len(_TEMPORARY) > _MAX_NAME:
        name = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest()
    return os.path.join(directory, name + _TEMPORARY)


def _named(error: OSError, path: str | None) -> OSError:
    number = error.errno or errno.EIO
    return OSError(number, os.strerror(number), path)


def _checked(result: int, path: str | None) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result), path)
    return int(result)
