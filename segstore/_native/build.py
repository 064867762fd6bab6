"""Builds the C helper with cffi, in API mode: `segstore._native._segstore`. Nothing on disk but the extension.

SEGSTORE_SANITIZE=address,undefined builds with those sanitizers and with C asserts.
"""

from __future__ import annotations

import os
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
SOURCES = ("crc32c.c", "decode.c", "encode.c", "ends.c", "index.c", "io.c", "scan.c")

sanitizers = os.environ.get("SEGSTORE_SANITIZE", "")
flags = ["-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden"]
if sanitizers:
    flags += ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
else:
    flags += ["-O3"]

ffibuilder = FFI()
ffibuilder.cdef((HERE / "cdef.h").read_text())
ffibuilder.set_source(
    "segstore._native._segstore",
    '#include <stdint.h>\n#include "cdef.h"\n',
    sources=[os.path.relpath(HERE / name) for name in SOURCES],
    depends=[os.path.relpath(path) for path in sorted(HERE.glob("*.h"))],
    include_dirs=[str(HERE)],
    extra_compile_args=flags,
    extra_link_args=[f"-fsanitize={sanitizers}"] if sanitizers else [],
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
