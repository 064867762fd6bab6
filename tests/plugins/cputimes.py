"""Measures what each test costs: `--cpu-times FILE` writes CPU seconds, of this process and all its
descendants, and elapsed seconds. A busy machine makes the elapsed time longer, but hardly the CPU time.

The file has a line for each phase of each test, with node id, phase, CPU and elapsed seconds; parallel
processes append to it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from time import monotonic  # imported before a test changes the clock

import pytest

TICK = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", metavar="FILE", help="append what each test costs in CPU seconds to FILE")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.cpu_times:
        config.pluginmanager.register(CpuTimes(Path(config.option.cpu_times)), "what tests cost")


class CpuTimes:
    def __init__(self, path: Path) -> None:
        self.path = path

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        yield from self._measured(item, "setup")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        yield from self._measured(item, "call")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        yield from self._measured(item, "teardown")

    def _measured(self, item: pytest.Item, phase: str) -> Generator[None, None, None]:
        cpu, clock = cpu_seconds(), monotonic()
        try:
            return (yield)
        finally:
            line = f"{item.nodeid}\t{phase}\t{cpu_seconds() - cpu:.3f}\t{monotonic() - clock:.3f}\n"
            with open(self.path, "ab") as out:
                out.write(line.encode("utf-8", "backslashreplace"))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, of its running descendants, and of the children that it has
    waited for.
    """
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    used = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    return used + sum(map(_used, _children(os.getpid())))


def _used(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICK + sum(map(_used, _children(pid)))
    return 0.0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found
