"""`python -m standby_rounds.node DEFECT WORK DIRECTORY ...`: a process that has one of the two directories.
DEFECT names one of `defects`, or is "none".

    lead DIRECTORY PORT_FILE ADVERTISED   serves it; the port is written to PORT_FILE
    follow DIRECTORY SOURCE MODE          prints "following"; "reachable" or "dead" as its input promotes it
    promote DIRECTORY OLD                 promotes a directory that no process has

A promotion ends the process, with status 0 once it is durable.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from pathlib import Path

import segstore

from . import defects
from .told import PARTITIONS, QUICK, TOPIC


def lead(directory: str, port_file: str, advertised: str) -> None:
    store = segstore.open(directory)
    if TOPIC not in store.topics():
        store.create_topic(TOPIC, PARTITIONS, {"segment.bytes": 20_000})
    server = segstore.serve(store, port=0, advertised=advertised)
    made = Path(f"{port_file}.new")
    made.write_text(str(server.port))
    made.rename(port_file)
    signal.pause()


def follow(directory: str, source: str, mode: str) -> None:
    with segstore.follow(source, directory, mode=mode, config=QUICK) as standby:
        print("following", flush=True)
        old = sys.stdin.readline().strip()
        if old:
            standby.promote(old).close()


def promote(directory: str, old: str) -> None:
    segstore.promote(directory, old, config=QUICK).close()


if __name__ == "__main__":
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    defects.plant(sys.argv[1])
    {"lead": lead, "follow": follow, "promote": promote}[sys.argv[2]](*sys.argv[3:])
