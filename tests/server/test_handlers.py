"""Modules of handlers: each has what the table says of it; a server that begins has not imported them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import segstore.server.handlers
from segstore.server.handlers import HANDLERS, MODULES, handlers_of

START = """
import sys
import segstore, segstore.server.network.server
print([name for name in sys.modules if name.startswith("segstore.coordinator.group.")])
"""


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_the_handlers_of_the_table(module: str) -> None:
    assert tuple(handlers_of(module)) == MODULES[module]


def test_no_module_is_left_out() -> None:
    (folder,) = segstore.server.handlers.__path__
    having = {path.stem for path in Path(folder).glob("*.py") if "\nHANDLERS = " in path.read_text()}
    assert having == set(MODULES)
    assert len(HANDLERS) == sum(map(len, MODULES.values()))


def test_a_server_begins_without_the_code_of_groups() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
