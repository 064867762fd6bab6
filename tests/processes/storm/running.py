"""Runs a storm in a process of its own, which prints all stacks and ends if anything hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from places import environment

KINDS = ("logs", "clients")


class Failed(Exception):
    """A storm that went wrong: the command that runs it again, and what the process said last."""


def run(kind: str, seed: int, steps: int) -> Counter[str]:
    """Counts of operations, and of interrupts. Failed."""
    command = [sys.executable, "-m", "storm.child", kind, str(seed), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if done.returncode:
        told = "\n".join(done.stderr.splitlines()[-120:])
        where = "in tests/processes, with the rooms of tests/support in PYTHONPATH"
        raise Failed(f"{' '.join(command)} ({where}): exit status {done.returncode}\n{told}")
    return Counter(json.loads(done.stdout.splitlines()[-1]))
