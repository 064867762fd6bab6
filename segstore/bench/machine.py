"""Where figures were taken. On disk: reads /proc and /sys. Threads: any; no state."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from segstore.files import Path


def machine(directory: Path, packages: Iterable[str] = ()) -> dict[str, Any]:
    """What bears on a figure: processor, memory (bytes), kernel, the file system of `directory`, versions of
    Python, segstore and `packages` (None: not installed), and the load (of 1 minute) at this moment.
    """
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "filesystem": filesystem(directory),
        "python": platform.python_version(),
        "byteorder": sys.byteorder,
        "packages": {name: _version(name) for name in ("segstore", "numpy", "cffi", *packages)},
        "load": round(os.getloadavg()[0], 2),
    }


def filesystem(directory: Path) -> dict[str, Any]:
    """Type, device and mount options of what holds `directory`, and what /sys says of a block device:
    these are None where there is none (tmpfs, overlay, network). A virtual disk says of `rotational` whatever
    its host has set.
    """
    number = os.stat(directory).st_dev
    wanted = f"{os.major(number)}:{os.minor(number)}"
    found = {"type": "unknown", "device": "unknown", "options": ""}
    for line in _text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == wanted:
            kind, device, _ = right.split(" ", 2)
            found = {"type": kind, "device": device, "options": left.split()[5]}
    return {**found, **_block_device(wanted)}


def _block_device(number: str) -> dict[str, Any]:
    # A partition has no queue of its own: its disk's is one directory up.
    base = os.path.realpath(f"/sys/dev/block/{number}")
    for place in (base, os.path.dirname(base)):
        if os.path.isdir(os.path.join(place, "queue")):
            rotational = _text(os.path.join(place, "queue", "rotational")).strip() == "1"
            scheduler = _text(os.path.join(place, "queue", "scheduler")).strip()
            cache = _text(os.path.join(place, "queue", "write_cache")).strip()
            virtual = any(bus in base for bus in ("/virtio", "/xen", "/vbd"))
            said = {"rotational": rotational, "scheduler": scheduler, "write_cache": cache}
            return {**said, "virtual": virtual}
    return dict.fromkeys(("rotational", "scheduler", "write_cache", "virtual"))


def _cpu() -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
