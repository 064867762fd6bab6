"""Fresh interpreters, which import no module but the ones that their code asks for."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
from places import REPOSITORY

PACKAGES = Path(np.__file__).parents[1]


def python(code: str, *arguments: object, flags: tuple[str, ...] = ()) -> str:
    """What a fresh interpreter prints, without `site`: that imports modules too, by what is installed."""
    begin = f"import sys; sys.path[:0] = [{str(REPOSITORY)!r}, {str(PACKAGES)!r}]\n"
    command = [sys.executable, "-I", "-S", *flags, "-c", begin + textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()
