"""What a measurement gives. On disk: one JSON file a measurement, replaced as a whole. Threads: any; frozen.

The JSON has the fields of `Results` by their names; a figure is the list of its runs. Keys come in the order
of the alphabet, but what has an order of its own (cells, findings, runs) keeps it: the same results are the
same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
        """The one cell with these keys. InvalidArgumentError where there is none, or several."""
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
        """From what `as_json` gave. KeyError, TypeError, AttributeError for anything else."""
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
    """Replace the file, or make it. OSError."""
    Files().write_atomic(path, text(results).encode(), sync=False)


def load(path: Path) -> Results:
    """From a file that `write` made. OSError; InvalidArgumentError where it holds no results."""
    data = Files().read_file(path)
    try:
        return Results.of(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"{path} holds no results of a measurement: {error}") from None
