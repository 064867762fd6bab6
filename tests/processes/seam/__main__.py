"""The program that is traced: see the package."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from .counted import UMASK, CountedChanges
from .escapes import ESCAPES
from .work import escaping, whole


def main(place: str) -> None:
    """Print what was counted in each store, and which methods were called in the first."""
    os.umask(UMASK)
    told: dict[str, Any] = {}
    for name, run in {
        "whole": whole,
        **{name: partial(escaping, escape=way) for name, way in ESCAPES.items()},
    }.items():
        root = Path(place) / name
        root.mkdir()
        files = CountedChanges(root)
        run(root / "store", files)
        told[name] = [(*change, n) for change, n in files.changes.items()]
        if name == "whole":
            told["called"] = sorted(files.called)
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
