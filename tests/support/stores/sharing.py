"""Stores without logs that processes share, and processes that are members of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import until

from segstore.errors import StoreLockedError
from segstore.files import Files
from segstore.storage.shared.coherence import HostSocket
from segstore.storage.shared.members import Members
from segstore.storage.shared.shared_file import SharedFile

SETTINGS = {"members": 64, "stopped_ms": 5000, "answer_ms": 30000}


def made_root(path: Path) -> str:
    """Make the directories of a store, and return its root."""
    (path / ".segstore").mkdir(parents=True)
    return str(path)


def made(files: Files, root: str, **settings: int) -> SharedFile:
    """Return the shared file of a host, which is live."""
    shared = SharedFile.make(files, root, **{**SETTINGS, **settings})
    shared.live = True
    return shared


def joined(files: Files, root: str) -> Members:
    """Return this process as a guest."""
    shared = SharedFile.join(files, root)
    assert shared is not None
    return Members(files, root, shared, may_host=False)


@contextmanager
def member_process(program: str, root: str, *before: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program that prints a line once it is a member, and ends with its input. It has `root`, `files`,
    and the functions of this module. `before` is what runs Python, as `unshare`.
    """
    code = f"from sharing import *\nroot, files = {root!r}, Files()\n{program}\nprint('member', flush=True)\n"
    command = [*before, sys.executable, "-c", code + "sys.stdin.read()"]
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if process.stdout.readline() != "member\n":
                process.kill()
                raise AssertionError(process.stderr.read())
            yield process
        finally:
            process.kill()


HOST = """
lock = files.lock(root + "/.lock")
members = Members(files, root, made(files, root), may_host=True)
members.become_host()
host = HostSocket(files, root, members.shared)
"""
GUEST = "members = joined(files, root)"

__all__ = [
    "GUEST",
    "HOST",
    "SETTINGS",
    "Files",
    "HostSocket",
    "Members",
    "SharedFile",
    "StoreLockedError",
    "joined",
    "made",
    "made_root",
    "member_process",
    "os",
    "sys",
    "until",
]
