"""Promise: a store, a copy of one, and all that works on them stay at the place where they were opened,
although the process changes its current directory: nothing is written elsewhere, and nothing is lost. Work
that was begun by relative paths uses absolute ones only.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changed_directories import CASES, PLACES, USES
from places import TESTS, environment

import segstore
from segstore.server.security.settings import SecurityConfig
from segstore.storage.staging import Stager
from segstore.wire.settings import WireConfig

PROGRAM = TESTS / "processes" / "changed_directories.py"
LIMIT = 240  # seconds, for a machine that is busy


@pytest.mark.kind("programs")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", CASES)
def test_work_goes_on_where_it_was_begun(case: str, place: str, tmp_path: Path) -> None:
    if case.startswith("Spark"):
        pytest.importorskip("pyspark", "4.2")
    assert ran(case, place, str(tmp_path)) == [], "relative paths were used"


def ran(*arguments: str) -> Any:
    command = [sys.executable, str(PROGRAM), *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.kind("programs")
def test_each_use_of_a_relative_path_is_noted() -> None:
    assert ran() == dict.fromkeys(USES, 1)


DOORS: dict[str, Callable[[], object]] = {
    "open": lambda: segstore.open("log"),
    "open to read": lambda: segstore.open("log", "r"),
    "open_replicated": lambda: segstore.open_replicated(["d0", "d1", "d2"]),
    "follow": lambda: segstore.follow("127.0.0.1:1", "log"),
    "promote": lambda: segstore.promote("log", "dead"),
    "mirror": lambda: segstore.mirror("127.0.0.1:1", "log"),
    "mirror_to": lambda: segstore.mirror_to("log", "127.0.0.1:1"),
    "end_mirror": lambda: segstore.end_mirror("log"),
    "copy": lambda: segstore.copy("log", "copied"),
    "check": lambda: segstore.check("log"),
    "cut_records": lambda: segstore.cut_records("log"),
    "a stager": lambda: Stager("log"),
    "a file of certificates": lambda: WireConfig.parse({"ssl.ca.location": "ca.pem"}),
    "a file of users": lambda: SecurityConfig.parse({"sasl_users": "users"}),
}


GIVEN = {
    "open_replicated": "d0",
    "copy": "copied",
    "a file of certificates": "ca.pem",
    "a file of users": "users",
}


@pytest.mark.parametrize("name", DOORS)
def test_in_a_deleted_directory_a_relative_path_is_an_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(segstore.StorageError, match="current directory can't be told") as raised:
        DOORS[name]()
    monkeypatch.undo()
    assert (raised.value.errno, raised.value.filename) == (errno.ENOENT, GIVEN.get(name, "log"))
    assert list(tmp_path.iterdir()) == []
