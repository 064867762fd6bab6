"""Execute notebooks whose output is the same each time, and keep it: `python -m benchmarks.notebooks`.

On disk: replaces notebooks/*.ipynb, each only once all of its cells have run. Threads: a kernel a notebook.
SEGSTORE_RESULTS names the directory of the results, by default benchmarks/results/.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import nbclient
import nbformat

ROOT = Path(__file__).parents[1]
NOTEBOOKS = [ROOT / "notebooks" / f"{name}.ipynb" for name in ("why-kafka-is-fast", "peers", "tables")]
SECONDS = 300  # at most, a cell


def executed(path: Path) -> Any:
    """The notebook with the output of this run, and no times of it. CellExecutionError."""
    notebook = nbformat.read(path, nbformat.NO_CONVERT)
    resources = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=SECONDS, resources=resources, record_timing=False).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main() -> None:
    """All of them."""
    for path in NOTEBOOKS:
        text = nbformat.writes(executed(path)) + "\n"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
        print(f"{path.relative_to(ROOT)}: {len(text):,} characters")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
