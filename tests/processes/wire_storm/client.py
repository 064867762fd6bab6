"""`python -m wire_storm.client DIR TOLD RUN KIND ADDRESS ROLE...`: a process with clients of one library,
each role in a thread. It ends when all roles have.
"""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from .roles import ROLES, Clients


def clients(kind: str, address: str) -> Clients:
    """Only the library that is asked for is imported."""
    if kind == "librdkafka":
        from .librdkafka import Sender, Taker

        return Clients(lambda *a: Sender(address, *a), lambda *a: Taker(address, *a))
    from . import python_clients as module

    library = module.Library(address)
    return Clients(lambda *a: module.Sender(library, *a), lambda *a: module.Taker(library, *a))


def run_roles(made: Clients, told: Path, run: str, kind: str, roles: Sequence[str]) -> list[threading.Thread]:
    """Start them; a process that ends does not wait for them."""
    threads = [
        threading.Thread(target=ROLES[role](made, told, f"{run}:{role}", kind).run, name=role, daemon=True)
        for role in roles
    ]
    for thread in threads:
        thread.start()
    return threads


def main(_store: str, told: str, run: str, kind: str, address: str, *roles: str) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    logging.disable(logging.ERROR)  # libraries tell of each connection that is cut
    for thread in run_roles(clients(kind, address), Path(told), run, kind, roles):
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
