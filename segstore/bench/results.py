"""`Results`: the results of a measurement, with a description of the machine on which it ran.

On disk: one JSON file for each measurement, which is replaced atomically; /proc and /sys are read. Threads:
any; `Results` are immutable.

The JSON object has the fields of `Results` by their names. A figure is the list of its runs' values. Keys are
written in alphabetical order, and lists (cells, findings, runs) in their own order, so that the same results
give the same bytes.
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
"""(number of finished runs, number of all runs, name of the next run): reports progress."""


@dataclass(frozen=True)
class Cell:
    """The figures of one combination of parameters. `keys` has these parameters, each a str, int, float or
    bool. A figure's name ends with its unit. `notes` has values that were measured only once, as JSON values.
    """

    keys: Mapping[str, Any]
    figures: Mapping[str, Figure]
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ClaimFinding:
    """A common claim, and the answer that the measured figures give to it."""

    claim: str
    answer: str


@dataclass(frozen=True)
class Results:
    """The results of one measurement: its name and question, the machine, the settings, the cells and the
    findings.
    """

    name: str
    question: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    cells: Sequence[Cell]
    findings: Sequence[ClaimFinding] = ()

    def where(self, **keys: Any) -> list[Cell]:
        """Return the cells whose `keys` include all of these keys and values, in the order of `cells`."""
        return [cell for cell in self.cells if all(cell.keys.get(k) == v for k, v in keys.items())]

    def cell(self, **keys: Any) -> Cell:
        """Return the only cell whose `keys` include all of these keys and values. Raises InvalidArgumentError
        if there is no such cell, or more than one.
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
        """Make results from `parsed`, a mapping that `as_json` has returned. Raises KeyError, TypeError or
        AttributeError if `parsed` is not such a mapping.
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
    """Write the results to the file `path`. Replace an existing file. Raises OSError."""
    Files().write_atomic(path, text(results).encode(), sync=False)


def load(path: Path) -> Results:
    """Return the results in a file that was written by `write`. Raises OSError, and InvalidArgumentError if
    the file does not contain results.
    """
    data = Files().read_file(path)
    try:
        return Results.of(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"{path} holds no results of a measurement: {error}") from None


# --- machine -----------------------------------------------------------------------------------

# The code below describes the machine on which figures were measured. It reads /proc and /sys.


def machine(directory: Path, packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return the properties that influence a figure: processor, memory (bytes), kernel, the file system of
    `directory`, versions of Python, segstore and `packages` (None if a package is not installed), and the
    load average of the last minute.
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
    """Return the type, the device and the mount options of the file system of `directory`, and the properties
    that /sys has for its block device. These properties are None if there is no block device (tmpfs, overlay,
    network). If the disk is virtual, `rotational` is a setting of the host.
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
    # A disk partition has no directory `queue` in /sys. The disk has one, in the parent directory.
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
