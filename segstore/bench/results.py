"""`Results`: the result of a measurement, with the machine on which it ran.

On disk: one JSON file for each measurement, replaced as a whole; /proc and /sys are read. Threads: any;
values are immutable.

The JSON has the fields of `Results` by their names; a figure is the list of its runs' values. Keys are in
alphabetical order, and lists (cells, findings, runs) keep their own order, so that the same results give the
same bytes.
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
"""Called with (finished runs, all runs, name of the next run)."""


@dataclass(frozen=True)
class Cell:
    """The figures of one combination of parameters. `keys` has these parameters, each a str, int, float or
    bool. A figure's name ends in its unit; `notes` has values that were observed only once (JSON values).
    """

    keys: Mapping[str, Any]
    figures: Mapping[str, Figure]
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ClaimFinding:
    """A common claim, and the answer that the figures give."""

    claim: str
    answer: str


@dataclass(frozen=True)
class Results:
    """One measurement: its name and question, the machine, the settings, its cells and findings."""

    name: str
    question: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    cells: Sequence[Cell]
    findings: Sequence[ClaimFinding] = ()

    def where(self, **keys: Any) -> list[Cell]:
        """Return the cells with these keys, in order."""
        return [cell for cell in self.cells if all(cell.keys.get(k) == v for k, v in keys.items())]

    def cell(self, **keys: Any) -> Cell:
        """Return the one cell with these keys. Raises InvalidArgumentError unless exactly one cell has these
        keys.
        """
        found = self.where(**keys)
        if len(found) != 1:
            raise InvalidArgumentError(f"{self.name}: {len(found)} cells have {keys}, and one must")
        return found[0]

    def values(self, key: str) -> list[Any]:
        """Return the distinct values that cells have for this key, in the order of the cells."""
        return list(dict.fromkeys(cell.keys[key] for cell in self.cells if key in cell.keys))

    def as_json(self) -> dict[str, Any]:
        """Return the results as JSON values."""
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
            "findings": [{"claim": finding.claim, "answer": finding.answer} for finding in self.findings],
        }

    @classmethod
    def of(cls, parsed: Mapping[str, Any]) -> Results:
        """Make results from the values of `as_json`. Raises KeyError, TypeError or AttributeError for other
        values.
        """
        cells = [
            Cell(
                dict(one["keys"]),
                {name: Figure.of(runs) for name, runs in one["figures"].items()},
                dict(one["notes"]),
            )
            for one in parsed["cells"]
        ]
        findings = [ClaimFinding(one["claim"], one["answer"]) for one in parsed["findings"]]
        settings, where = dict(parsed["settings"]), dict(parsed["machine"])
        return cls(parsed["name"], parsed["question"], where, settings, cells, findings)


def text(results: Results) -> str:
    """Return the content of the results' file."""
    return json.dumps(results.as_json(), ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def write(results: Results, path: Path) -> None:
    """Write the results to a file, which is replaced if there is one. Raises OSError."""
    Files().write_atomic(path, text(results).encode(), sync=False)


def load(path: Path) -> Results:
    """Return the results in a file that `write` wrote. Raises OSError; InvalidArgumentError if the file has
    no results.
    """
    data = Files().read_file(path)
    try:
        return Results.of(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"{path} holds no results of a measurement: {error}") from None


# --- machine -----------------------------------------------------------------------------------

# This part describes the machine on which figures were taken. It reads /proc and /sys.


def machine(directory: Path, packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return the properties that influence a figure: processor, memory (bytes), kernel, the file system of
    `directory`, versions of Python, segstore and `packages` (None if a package is not installed), and the
    present load (of 1 minute).
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
    """Return type, device and mount options of the file system of `directory`, and its block device's
    properties in /sys. The block device's properties are None if there is no block device (tmpfs, overlay,
    network). For a virtual disk `rotational` is a setting of the host.
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
    # A disk partition has no queue of its own. The queue of its disk is one directory up.
    base = os.path.realpath(f"/sys/dev/block/{number}")
    for place in (base, os.path.dirname(base)):
        if os.path.isdir(os.path.join(place, "queue")):
            rotational = _text(os.path.join(place, "queue", "rotational")).strip() == "1"
            scheduler = _text(os.path.join(place, "queue", "scheduler")).strip()
            cache = _text(os.path.join(place, "queue", "write_cache")).strip()
            virtual = any(bus in base for bus in ("/virtio", "/xen", "/vbd"))
            queue = {"rotational": rotational, "scheduler": scheduler, "write_cache": cache}
            return {**queue, "virtual": virtual}
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
