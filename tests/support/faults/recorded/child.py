"""The process that is recorded: `python -m recorded.child run|recover PROGRAM ROOT`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .planted import PLANTS
from .programs import PROGRAMS
from .recorder import Recorder


def main(what: str, name: str, root: str) -> None:
    if plant := os.environ["SEGSTORE_RECORDING_PLANT"]:
        PLANTS[plant]()
    program, recorder = PROGRAMS[name], Recorder()
    if what == "run":
        program.run(Path(root), recorder)
    else:
        assert program.recover is not None
        program.recover(Path(root))
        recorder.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
