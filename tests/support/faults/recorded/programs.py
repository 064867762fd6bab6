"""The programs that are recorded, each with a judge of what cuts leave. A new one is a line of PROGRAMS."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from faulty.driver import Scenario
from faulty.judging import judge
from faulty.taking import Cut
from places import TESTS

from segstore.files import Files

from . import calls, followers, looks, more, registers, replicas, worlds
from .recorder import Recorder

Note = dict[str, Any]
NOTHING = Scenario._field_defaults["mend"]


class Program(NamedTuple):
    """`run` is called in the process that is recorded, with the directory below which everything is recorded;
    it ends by `Recorder.end`. `judge` gets a directory with what a cut has left of that, and the last note.
    `recover` opens such a directory as `judge` does, and is recorded too; None: it needs other machines.

    If there are `disks`, which are directories, a cut is of one of them that is drawn, and the others keep
    everything.
    """

    run: Callable[[Path, Recorder], object]
    judge: Callable[[Path, Note], object]
    recover: Callable[[Path], object] | None = None
    disks: tuple[str, ...] = ()


def _scenarios() -> dict[str, Scenario]:
    """Return the operations that also run on a disk above the C."""
    modules = (f"test_each_call_{of}" for of in ("log", "store", "transactions", "opening", "importing"))
    tables = (runpy.run_path(str(TESTS / "crash" / f"{module}.py"))["SCENARIOS"] for module in modules)
    return {name: scenario for table in tables for name, scenario in table.items()}


def of_scenario(scenario: Scenario) -> Program:
    """Return the program that runs a scenario."""

    def run(root: Path, recorder: Recorder) -> None:
        worlds.run(scenario, root / "s", recorder)

    def judged(root: Path, note: Note) -> None:
        told = worlds.told_of(note)
        if scenario.mend is NOTHING:  # else it was damaged on purpose
            looks.judge_closed(root / "s")
        looks.judge_reader(root / "s", told)
        scenario.mend(root / "s", Files())
        judge(root / "s", Cut({}, "", told, told), note["now"])
        scenario.also(root)

    def recover(root: Path) -> None:
        scenario.mend(root / "s", Files())
        worlds.recover(root / "s")

    return Program(run, judged, recover)


def of_registers(run: Callable[[Path, Recorder], None], read: Callable[..., Any]) -> Program:
    return Program(run, lambda root, note: registers.judged(root, note, read), registers.recover)


def of_followers(follow: Callable[..., Any]) -> Program:
    return Program(followers.followed(follow), followers.judged(follow))


SCENARIOS = {**_scenarios(), **more.MORE}
WHOLE, ONE = replicas.judged("durable"), replicas.judged("told")
DISKS = ("d0", "d1", "d2")

PROGRAMS = {
    **{name: of_scenario(scenario) for name, scenario in SCENARIOS.items()},
    "each call": Program(calls.run, calls.judged),
    "upgrade": Program(more.upgrades, more.judge_upgraded, registers.recover),
    "files of a tree": of_registers(registers.files, registers.files_found),
    "quotas and credentials": of_registers(registers.small, registers.small_found),
    "replicas": Program(replicas.appends, WHOLE, replicas.recover),
    "replicas, inline": Program(replicas.inline, WHOLE, replicas.recover),
    "replicas, together": Program(replicas.together, WHOLE, replicas.recover),
    "replicas, one disk": Program(replicas.appends, ONE, replicas.recover, DISKS),
    "replicas, inline, one disk": Program(replicas.inline, ONE, replicas.recover, DISKS),
    "standby": of_followers(followers.standby),
    "mirror": of_followers(followers.mirrored),
    "standby, promoted": Program(followers.promotes, followers.judge_promoted),
    "an old primary comes back": Program(followers.comes_back, followers.judge_came_back),
}
