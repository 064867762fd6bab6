"""The C helper: `lib` has the functions of cdef.h, `ffi` makes what they take. Nothing on disk.

Stateless; every call releases the GIL and may be made from any thread.
"""

from __future__ import annotations

from segstore._native._segstore import ffi, lib

__all__ = ["ffi", "lib"]
