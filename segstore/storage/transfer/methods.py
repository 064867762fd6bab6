"""The ways to move bytes from a file to a sink, by name, and how much goes at a time. Nothing on disk."""

from __future__ import annotations

SENDFILE, SPLICE, MMAP, READ = "sendfile", "splice", "mmap", "read"
COPY_FILE_RANGE, ZEROCOPY, IO_URING, AUTO = "copy_file_range", "zerocopy", "io_uring", "auto"

METHODS = (SENDFILE, SPLICE, MMAP, READ, COPY_FILE_RANGE, ZEROCOPY, IO_URING, AUTO)

BUFFER = 1 << 20
"""Bytes that `read` reads at a time."""
WINDOW = 4 << 20
"""Bytes that `mmap`, `zerocopy` and `io_uring` map at a time."""
