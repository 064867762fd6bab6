"""`python -m wire_storm.server DIR TOLD RUN PORT ADVERTISED DEFECT`: `segstore serve`, with the settings of a
round, and with clients of its own in the same process. DEFECT names one of `defects`, or is "none".
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from pathlib import Path
from typing import Any

import segstore
from segstore.cli import main as segstore_main

from . import defects
from .client import run_roles
from .python_clients import Own, Sender, Taker
from .roles import Clients
from .told import CONFIG, TOPICS

ROLES = ("idempotent", "transactions", "member", "loop", "reader")


def main(directory: str, told: str, run: str, port: str, advertised: str, defect: str) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    defects.plant(defect)
    served = segstore.serve

    def serve(store: segstore.Store, *args: Any, **settings: Any) -> segstore.Server:
        for topic, (partitions, config) in TOPICS.items():
            if topic not in store.topics():
                store.create_topic(topic, partitions, config)
        server = served(store, *args, **settings)
        Path(told).with_name("port").write_text(str(server.port))
        own = Own(store)
        made = Clients(lambda *a: Sender(own, *a), lambda *a: Taker(own, *a))
        run_roles(made, Path(told), run, "own", ROLES)
        return server

    segstore.serve = serve  # type: ignore[assignment]
    command = ["serve", "--store", directory, "--listen", f"127.0.0.1:{port}"]
    command += ["--advertise", f"127.0.0.1:{advertised}"]
    for name, value in {**CONFIG, "group.initial.rebalance.delay.ms": 0}.items():
        command += ["--set", f"{name}={value}"]
    sys.exit(segstore_main(command))


if __name__ == "__main__":
    main(*sys.argv[1:])
