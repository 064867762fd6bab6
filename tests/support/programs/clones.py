"""Makes a copy of the repository that has the files in git alone, and what a build adds to them: what a fresh
clone has after `make .venv/.built`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from places import REPOSITORY
from waiting import PATIENCE

BUILT = "segstore/**/*.so"


def clone(directory: Path) -> Path:
    """Copy the files in git, as they are now, and the built extension. The test is skipped without git."""
    asked = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"which files are in git is not known: {error}")
    made = directory / "clone"
    built = [str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob(BUILT)]
    for name in (*filter(None, told.split("\0")), *built):
        if (REPOSITORY / name).is_file():  # a file that was removed is in git until the next commit
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, made / name)
    return made


def executed(path: Path, variables: Mapping[str, str] = {}) -> Any:
    """Run a notebook in its directory, by a kernel that imports segstore from the clone; return the notebook
    with its outputs. Raises CellExecutionError. The test is skipped without nbclient or ipykernel.
    """
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, nbformat.NO_CONVERT)
    resources = {"metadata": {"path": str(path.parent)}}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEGSTORE_")}
    client = nbclient.NotebookClient(notebook, timeout=4 * PATIENCE, resources=resources, record_timing=False)
    client.execute(env={**environment, "PYTHONPATH": str(path.parents[1]), **variables})
    return notebook


def shown(notebook: Any) -> list[str]:
    """Return the Markdown and the text that a notebook has shown, and "picture" for each picture."""
    return [_said(output) for cell in notebook.cells for output in cell.get("outputs", ())]


def _said(output: Any) -> str:
    data = output.get("data", {})
    text: str = data.get("text/markdown") or output.get("text", "")
    return "picture" if "image/png" in data else text
