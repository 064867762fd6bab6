"""Threads and descriptors of servers in this process."""

from __future__ import annotations

import os
import threading


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("segstore-server")}


def descriptors() -> list[str]:
    """What this process has open of a server: sockets, eventfds, epolls."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return sorted(path for path in found if "socket:" in path or "event" in path)
