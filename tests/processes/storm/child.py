"""One storm in a process of its own, `python -m storm.child logs|clients SEED STEPS`: prints its counts."""

from __future__ import annotations

import faulthandler
import json
import logging
import random
import sys
import tempfile
from pathlib import Path

from memory import place

from .clients import Clients
from .logs import Logs
from .striking import Striker, watch

KINDS = {"logs": Logs, "clients": Clients}


def main(kind: str, seed: str, steps: str) -> None:
    logging.disable(logging.CRITICAL)
    faulthandler.enable()
    striker = Striker(random.Random(int(seed)))
    with tempfile.TemporaryDirectory(prefix="segstore-storm-", dir=place()) as directory:
        storm = KINDS[kind](Path(directory), striker)
        for number in range(int(steps)):
            try:
                storm.step()
            except BaseException:
                print(f"step {number}, after {striker.counts['interrupts']} interrupts", file=sys.stderr)
                raise
        watch()
        storm.end()
    print(json.dumps(striker.counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
