"""Builds the state again that a power cut has left, from a trace that a failed test names.

    python -m recorded.rebuild TRACE SEED CALL KIND TARGET [DISK,...]

PYTHONPATH has the rooms of tests/support.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .recording import Recording


def main(path: str, seed: str, call: str, mode: str, target: str, disks: str = "") -> None:
    image = Recording.of(Path(path), seed).rebuild(int(call), mode, disks.split(",") if disks else ())
    print(image.write(target))


if __name__ == "__main__":
    main(*sys.argv[1:])
