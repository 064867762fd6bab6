"""Compiles each C file of segstore for macOS, by zig. Nothing is linked or run.

docs/packaging.md says what else segstore would need there.

usage: python tools/macos.py
"""

from __future__ import annotations

import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from wheels import REPOSITORY, copy_headers

NATIVE = REPOSITORY / "segstore" / "_native"
EXHIBITS = REPOSITORY / "segstore" / "bench" / "zero_copy"
TARGETS = ("aarch64-macos", "x86_64-macos")


def main() -> int:
    arguments, _ = runpy.run_path(str(NATIVE / "build.py"))["flags"]()
    sources = sorted([*NATIVE.glob("[!_]*.c"), *EXHIBITS.glob("*.c")])  # not what cffi generates
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="segstore-macos-") as folder:
        headers = copy_headers(Path(folder) / "include")
        for target in TARGETS:
            for source in sources:
                command = [
                    sys.executable,
                    "-m",
                    "ziglang",
                    "cc",
                    "-target",
                    target,
                    f"-I{headers}",
                    f"-I{NATIVE}",
                    *arguments,
                ]
                command += ["-Werror", "-c", str(source), "-o", str(Path(folder) / "object.o")]
                wrong += subprocess.run(command, check=False).returncode != 0
        sys.stdout.write(f"{len(TARGETS) * len(sources)} objects, {wrong} not compiled\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
