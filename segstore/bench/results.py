"""`Results`: what a measurement returns, with the machine it ran on.

On disk: one JSON file for each measurement, replaced as a whole; reads /proc and /sys. Threads: any; values
are immutable.

The JSON has the fields of `Results` by their names; a figure is the list of its runs. Keys are in
alphabetical order, but lists with an order of their own (cells, findings, runs) keep it: the same results
are the same bytes.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from segstore.bench.figures import Figure
from segstore.errors import InvalidArgumentError
from segstore.files import Files, Path

Progress = Callable[[int, int, str], None]
"""Called with how much is done, of how much in all, and what comes now."""


@dataclass(frozen=True)
class Cell:
    """What was measured of one combination. `keys` say which: str, int, float or bool each. A figure's name
    ends in its unit; `notes` are what was seen once (JSON values).
    """

    keys: Mapping[str, Any]
    figures: Mapping[str, Figure]
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """A claim as people make it, and what these figures say to it."""

    claim: str
    answer: str


@dataclass(frozen=True)
class Results:
    """One measurement: its name and question, where and how it was done, and what came out."""

    name: str
    question: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    cells: Sequence[Cell]
    findings: Sequence[Finding] = ()

    def where(self, **keys: Any) -> list[Cell]:
        """The cells with these keys, in order."""
        return [cell for cell in self.cells if all(cell.keys.get(k) == v for k, v in keys.items())]

    def cell(self, **keys: Any) -> Cell:
        """The one cell with these keys. Raises InvalidArgumentError where there is none, or several."""
        found = self.where(**keys)
        if len(found) != 1:
            raise InvalidArgumentError(f"{self.name}: {len(found)} cells have {keys}, and one must")
        return found[0]

    def values(self, key: str) -> list[Any]:
        """The different values that cells have for this key, in the order in which they come."""
        return list(dict.fromkeys(cell.keys[key] for cell in self.cells if key in cell.keys))

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        cells = [
            {
                "keys": dict(cell.keys),
                "figures": {name: figure.as_json() for name, figure in cell.figures.items()},
                "notes": dict(cell.notes),
            }
            for cell in self.cells
        ]
        return {
            "name": self.name,
            "question": self.question,
            "machine": dict(self.machine),
            "settings": dict(self.settings),
            "cells": cells,
            "findings": [{"claim": one.claim, "answer": one.answer} for one in self.findings],
        }

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Results:
        """From what `as_json` gave. Raises KeyError, TypeError, AttributeError for anything else."""
        cells = [
            Cell(
                dict(one["keys"]),
                {name: Figure.of(runs) for name, runs in one["figures"].items()},
                dict(one["notes"]),
            )
            for one in found["cells"]
        ]
        findings = [Finding(one["claim"], one["answer"]) for one in found["findings"]]
        settings, where = dict(found["settings"]), dict(found["machine"])
        return cls(found["name"], found["question"], where, settings, cells, findings)


def text(results: Results) -> str:
    """The file's content."""
    return json.dumps(results.as_json(), ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def write(results: Results, path: Path) -> None:
    """Replace the file, or make it. Raises OSError."""
    Files().write_atomic(path, text(results).encode(), sync=False)


def load(path: Path) -> Results:
    """From a file that `write` made. Raises OSError; InvalidArgumentError where it holds no results."""
    data = Files().read_file(path)
    try:
        return Results.of(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"{path} holds no results of a measurement: {error}") from None


# --- machine -----------------------------------------------------------------------------------

# The machine on which figures were taken. On disk: reads /proc and /sys.


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
