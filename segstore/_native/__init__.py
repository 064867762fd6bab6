"""The C helper: `lib` has the functions of `contract/`, `ffi` makes their arguments. Nothing on disk.

C's state is in structs that the caller owns; `contract/answers.h` lists the exceptions. Every call of `lib`
releases the GIL and may be made from any thread. Six modules beside `lib` work on Python's own objects:
`_producer` has types of the producer; `_spans` reads objects, and keeps the GIL; `_tail_append` mostly keeps
the GIL for an append, and releases it for a flush; `_transfer` releases the GIL after it has read the
objects; `_tailer` waits, and makes a consumer's record; `_counts` keeps the GIL.

C gets a view of the memory of a Python object, the owner, in one of three ways. tests/unit/test_lending.py
checks that the source uses no other way:

- `lib.f(ffi.from_buffer(kind, owner))`: nothing but the call itself refers to the view;
- `with ffi.from_buffer(kind, owner) as view:`, or `with lent(owners) as views:`: the block releases the view
when it ends;
- `held(kind, owner)`: the view may be kept anywhere; `held` refuses a memoryview as the owner.

All three avoid a fault of CPython (gh-77894, mended in 3.12.7 and 3.13): if a memoryview and a view of it lie
in one reference cycle, the interpreter crashes when the garbage collector clears that cycle. Local variables
of a function that raises can be in a reference cycle, because the error's traceback refers to them. Owners
that are no memoryview are safe, because bytes, bytearray, mmap, numpy arrays and Arrow buffers free nothing
before their last reference goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

try:
    from segstore._native._producer import bind as bind_producer
    from segstore._native._segstore import ffi, lib
    from segstore._native._spans import seg_spans, seg_stamps
    from segstore._native._tail_append import bind as bind_append
    from segstore._native._tail_append import seg_list_append, seg_tail_append, seg_tail_flush
    from segstore._native._tailer import EndsTailer
    from segstore._native._tailer import bind as bind_tailer
    from segstore._native._tailer import records as make_consumer_records
    from segstore._native._transfer import Sendable, seg_transfer
    from segstore._native._transfer import bind as bind_transfer
except ModuleNotFoundError as error:
    raise ImportError(
        f"segstore's C helper is not built in {__path__[0]}, which is its source tree: run Python from "
        "another directory, where what was installed is imported, or build it here by `pip install -e .`"
    ) from error

__all__ = [
    "EndsTailer",
    "Sendable",
    "address",
    "crc32c",
    "crc32c_by",
    "descriptors",
    "ffi",
    "held",
    "lent",
    "lib",
    "make_consumer_records",
    "seg_list_append",
    "seg_spans",
    "seg_stamps",
    "seg_tail_append",
    "seg_tail_flush",
    "seg_transfer",
    "unset",
]


def address(pointer: Any) -> int:
    """Return the address in a pointer; the caller must keep the memory alive."""
    return int(ffi.cast("uintptr_t", pointer))


_BOUND = "seg_tail_append", "seg_tail_flush", "seg_tail_write", "seg_encode"
bind_append(*(address(ffi.addressof(lib, name)) for name in _BOUND))
bind_transfer(address(ffi.addressof(lib, "seg_send_stretch")))
bind_producer(address(ffi.addressof(lib, "seg_tail_append")))
bind_tailer(address(ffi.addressof(lib, "seg_await_record")))


unset = ffi.new_allocator(should_clear_after_alloc=False)
"""Allocates like `ffi.new`, but leaves the bytes uninitialised, so that pages that are never written take no
memory.
"""


def descriptors() -> Any:
    """Return a slot for two open descriptors, each -1 at first. C opens files into the slot, and closes them
    with the slot's last reference. Python code that opened and closed them could be interrupted in between,
    and leave a descriptor open for ever.
    """
    return ffi.gc(ffi.new("int32_t[2]", (-1, -1)), lib.seg_close)


def held(kind: str, owner: Any) -> Any:
    """Return a view of `owner`'s memory as the C type `kind`. The view keeps the memory alive. Raises
    TypeError for a memoryview; BufferError or TypeError for an object without a buffer.
    """
    if type(owner) is memoryview:
        raise TypeError("a view of a memoryview can't be kept: lend it by `with`, or to one call")
    return ffi.from_buffer(kind, owner)


class lent:
    """Views of several owners' memory as bytes, for one `with` block. An owner is an object with a buffer."""

    __slots__ = ("_owners", "_views")

    def __init__(self, owners: Sequence[Any]) -> None:
        self._owners = owners
        self._views: list[Any] = []

    def __enter__(self) -> list[Any]:
        try:
            for owner in self._owners:
                self._views.append(ffi.from_buffer("uint8_t[]", owner))
        except BaseException:
            self._release()
            raise
        return self._views

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        for view in self._views:
            ffi.release(view)


def crc32c_by(hardware: bool) -> Callable[[bytes], int]:
    """Return a function for the CRC-32C of bytes: the function of the C helper if `hardware` (the CPU has an
    instruction for CRC-32C), else the function of the crc32c package.

    The crc32c package is slow to import, because it imports more than a hundred modules. It is imported only
    if needed, and then during the import of segstore.
    """
    if hardware:
        return _crc32c
    import crc32c as package

    by_package: Callable[[bytes], int] = package.crc32c
    return by_package


def _crc32c(data: bytes) -> int:
    return int(lib.seg_crc32c(0, ffi.from_buffer("uint8_t[]", data), len(data)))


crc32c = crc32c_by(bool(lib.seg_crc32c_is_hardware()))
