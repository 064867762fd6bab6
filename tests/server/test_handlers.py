"""Modules of handlers: each has what the table says of it; a server that begins has not imported them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE

import segstore.server.handlers
from segstore.server.handlers import HANDLERS, MODULES, handlers_of

START = """
import sys
import segstore, segstore.cli.serve
with segstore.open(sys.argv[1]) as store, segstore.serve(store, "127.0.0.1", 0) as server:
    names = [*sys.modules]
print(*[name for name in names if f"{name}.".startswith(tuple(sys.argv[2:]))])
"""
UNUSED = {
    "groups": ["segstore.coordinator.group."],
    "SASL": [
        f"segstore.server.security.{name}." for name in ("sasl", "scram", "scram_users", "plain", "users")
    ],
    "promotion": ["segstore.storage.meta.promotion.", "segstore.replica_fetcher."],
    "names that are not ASCII": ["encodings.idna.", "stringprep."],
    "files of systems without memfd_create": ["tempfile.", "shutil.", "lzma.", "bz2."],
    "settings with units": ["fractions.", "decimal."],
    "errors of settings": ["difflib."],
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_the_handlers_of_the_table(module: str) -> None:
    assert tuple(handlers_of(module)) == MODULES[module]


def test_no_module_is_left_out() -> None:
    (folder,) = segstore.server.handlers.__path__
    having = {path.stem for path in Path(folder).glob("*.py") if "\nHANDLERS = " in path.read_text()}
    assert having == set(MODULES)
    assert len(HANDLERS) == sum(map(len, MODULES.values()))


@pytest.mark.kind("programs")
@pytest.mark.parametrize("code", UNUSED)
def test_a_server_begins_without_the_code_of(code: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", START, str(tmp_path / "store"), *UNUSED[code]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.split() == []
