"""Builds two extension modules: `segstore._native._segstore`, and the C code that `segstore bench zero-copy`
measures. On disk it writes only the build's own output.

setup.py runs it (`cffi_modules`), and the package never imports it. Environment variables choose other
builds: SEGSTORE_SANITIZE=address,undefined adds those sanitizers, and C's asserts. SEGSTORE_COVERAGE=1 adds
counts of lines and branches for gcov. SEGSTORE_STORM=1 adds steps at which a process pauses, dies or stops by
chance (step.h); this build must not replace the usual build.
"""

from __future__ import annotations

import os
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
FOLDER = "segstore/_native"  # distutils wants sources relative to setup.py
SOURCES = (
    "active.c",
    "append.c",
    "arrow.c",
    "bring_up.c",
    "combine.c",
    "commit.c",
    "compact.c",
    "crc32.c",
    "crc32c.c",
    "decode.c",
    "descriptors.c",
    "encode.c",
    "ends.c",
    "exchange.c",
    "await_record.c",
    "gather.c",
    "hand_on.c",
    "hand_over.c",
    "headers.c",
    "index.c",
    "io.c",
    "members.c",
    "murmur2.c",
    "point.c",
    "processor.c",
    "producers.c",
    "range.c",
    "scan.c",
    "seal.c",
    "share.c",
    "share_fence.c",
    "share_host.c",
    "share_lock.c",
    "share_record.c",
    "shared_ends.c",
    "share_sync.c",
    "staging.c",
    "stretch.c",
    "table.c",
    "table_read.c",
    "tail.c",
    "times.c",
    "transfer.c",
    "validate.c",
)
EXHIBITS = "segstore/bench/zero_copy"
STORM = ("storm.c",) if os.environ.get("SEGSTORE_STORM") else ()
CONTRACT = (
    "answers",
    "batch",
    "column",
    "combine",
    "crc",
    "file",
    "index",
    "active",
    "shared",
    "members",
    "share_lock",
    "shared_ends",
    "producers",
    "records",
    "rules",
    "threads",
    "ends",
    "log",
    "share",
    "share_sync",
    "segment",
    "transfer",
    "exchange",
    "table",
    "staging",
    "cleaner",
)
"""The headers of `contract/`, each after the headers that it includes."""
HEADERS = (
    "active.h",
    "batch.h",
    "bytes.h",
    "claim.h",
    "clock.h",
    "column.h",
    "combine.h",
    "counts.h",
    "crc.h",
    "darwin.h",
    "entry.h",
    "hand_over.h",
    "keep_lock.h",
    "message.h",
    "objects.h",
    "producer.h",
    "reader.h",
    "record.h",
    "relax.h",
    "shape.h",
    "share.h",
    "share_fence.h",
    "share_lock.h",
    "share_record.h",
    "step.h",
    "system.h",
    "tail.h",
    "tail_append.h",
    "tail_lock.h",
    *(f"contract/{name}.h" for name in CONTRACT),
)
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wno-unused-parameter", "-Wno-sign-compare")


def flags() -> tuple[list[str], list[str]]:
    """Return the arguments for the compiler and for the linker."""
    if os.environ.get("SEGSTORE_COVERAGE"):
        count = ["--coverage", "-fprofile-update=atomic"]
        return ["-O0", "-std=gnu11", "-g", *count, *WARNINGS], ["--coverage"]
    if os.environ.get("SEGSTORE_STORM"):
        return ["-O1", "-std=gnu11", "-pthread", "-fvisibility=hidden", "-DSEGSTORE_STORM", *WARNINGS], [
            "-pthread"
        ]
    sanitizers = os.environ.get("SEGSTORE_SANITIZE")
    if not sanitizers:
        return ["-O3", "-std=gnu11", "-pthread", "-fvisibility=hidden", *WARNINGS], ["-pthread"]
    sanitize = f"-fsanitize={sanitizers}"
    debug = ["-O1", "-std=gnu11", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
    return [*debug, sanitize, *WARNINGS], [sanitize]


def declarations(*headers: Path) -> str:
    """Return the lines of headers without preprocessor directives, which cffi does not accept."""
    texts = [header.read_text(encoding="utf-8") for header in headers]
    return "".join(line for text in texts for line in text.splitlines(keepends=True) if line[0] != "#")


def _set_source(builder: FFI, name: str, sources: list[str], depends: list[str], *more: str) -> None:
    compile_args, link_args = flags()
    headers = (*(f"contract/{noun}.h" for noun in CONTRACT), *more)
    builder.set_source(
        name,
        "".join(f'#include "{header}"\n' for header in headers),
        sources=sources,
        depends=depends,
        include_dirs=[FOLDER, EXHIBITS],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )


def _builder() -> FFI:
    builder = FFI()
    builder.cdef(declarations(*(HERE / "contract" / f"{name}.h" for name in CONTRACT)))
    _set_source(
        builder,
        "segstore._native._segstore",
        [f"{FOLDER}/{name}" for name in (*SOURCES, *STORM)],
        [f"{FOLDER}/{name}" for name in HEADERS],
    )
    return builder


def _exhibits(engine: FFI) -> FFI:
    builder = FFI()
    builder.include(engine)  # the engine declares `seg_window`
    builder.cdef(declarations(HERE.parent / "bench" / "zero_copy" / "exhibits.h"))
    _set_source(
        builder,
        "segstore.bench.zero_copy._exhibits",
        [f"{EXHIBITS}/{name}" for name in ("uring.c", "zerocopy.c")],
        [f"{EXHIBITS}/exhibits.h", *(f"{FOLDER}/{name}" for name in HEADERS)],
        "exhibits.h",
    )
    return builder


ffibuilder = _builder()
exhibits = _exhibits(ffibuilder)
