"""`python -m shared_storm --kills 500`: storms over a store that several processes write.

Members append, pause, die and stop at steps of C and of Python, and are killed and stopped from outside;
behind each round nothing that was acknowledged may be lost, doubled or torn. Run it with a build that has the
steps (`shared_storm.built`); without one, it makes one in build/storm.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from places import REPOSITORY

import segstore

from . import built
from .kinds import KINDS
from .plan import Plan
from .steps import BUGS


def main() -> int:
    parser = argparse.ArgumentParser(prog="shared_storm", description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--round", type=int, default=60, help="kills in a round")
    parser.add_argument("--kind", choices=KINDS, action="append", help="by default all, one after the other")
    parser.add_argument("--first", type=int, default=None, help="first seed; by default one that is new")
    parser.add_argument("--bug", choices=BUGS, default="none")
    parser.add_argument(
        "--directory", type=Path, default=None, help="where stores are made; kept at a failure"
    )
    parser.add_argument("--json", type=Path, default=None, help="where to write the table as JSON, too")
    parser.add_argument("--keep", action="store_true", help="keep the stores of all rounds")
    parser.add_argument("--stop", action="store_true", help="stop at the first round that is bad")
    options = parser.parse_args()
    if "SEGSTORE_STORM_BUILT" not in os.environ:
        why_not = built.why_not()
        if why_not is not None:
            sys.exit(why_not)
        package = built.build(REPOSITORY / "build" / "storm")
        found = built.surroundings(package)
        os.execve(sys.executable, [sys.executable, "-m", "shared_storm", *sys.argv[1:]], found)
    package = Path(segstore.__file__).parents[1]
    if package != Path(os.environ["SEGSTORE_STORM_BUILT"]):
        sys.exit(f"{package} has no steps: run this with another working directory")
    return storm(options)


def storm(options: argparse.Namespace) -> int:
    """Run rounds of each kind by turns until there were so many kills."""
    from .running import Round, may_be_apart

    seed = int(time.time()) if options.first is None else options.first
    kinds = options.kind or [kind for kind in KINDS if may_be_apart() or not KINDS[kind].get("apart")]
    base = options.directory or Path(tempfile.mkdtemp(prefix="shared-storm-"))
    base.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    steps: dict[str, Counter[str]] = {}
    wrong: dict[str, list[str]] = {}
    turn = 0
    while sum(row["kills"] for row in rows.values()) < options.kills:
        kind = kinds[turn % len(kinds)]
        turn += 1
        directory = base / f"{kind}-{seed}"
        result = Round(directory, seed, plan_of(kind, options)).play()
        take_in(rows[kind], result.counts, result.steps, bool(result.wrong))
        for name, found in result.steps.items():
            steps.setdefault(name, Counter()).update(found)
        if result.wrong:
            wrong[f"{kind} {seed}"] = result.wrong
            print(
                f"{directory} (--kind {kind} --first {seed}) is bad:",
                *result.wrong,
                sep="\n  ",
                file=sys.stderr,
            )
        elif not options.keep:
            shutil.rmtree(directory)
        seed += 1
        if options.json:
            said = {"rows": rows, "died": steps["died"], "stopped": steps["stopped"], "wrong": wrong}
            options.json.write_text(json.dumps(said))
        if wrong and options.stop:
            break
    print(table(rows))
    print("died at", {step: n for step, n in steps["died"].most_common() if n})
    print("never died at", [step for step, n in steps["died"].items() if not n])
    if not wrong and options.directory is None:
        shutil.rmtree(base)
    return 1 if wrong else 0


def plan_of(kind: str, options: argparse.Namespace) -> Plan:
    """Return the plan of a round."""
    return Plan(**{"kills": options.round, "bug": options.bug, **KINDS[kind]})


COLUMNS = (
    *("kills", "rounds", "bad", "acknowledged", "under way, and there", "refused", "from dead", "cuts"),
    *("takeovers", "hosts", "fences", "committed"),
)


def take_in(row: Counter[str], counts: Counter[str], steps: dict[str, Counter[str]], is_bad: bool) -> None:
    """Add a round to the row of its kind."""
    met = steps["met"]
    row["rounds"] += 1
    row["bad"] += is_bad
    row["kills"] += sum(count for how, count in counts.items() if how.startswith("kill"))
    row["from dead"] += met["FROM_DEAD"]
    row["cuts"] += met["CUT"]
    row["takeovers"] += met["TAKEN_OVER"]
    row["fences"] += met["FENCED"]
    for name in ("acknowledged", "under way, and there", "refused", "hosts", "committed"):
        row[name] += counts[name]


def table(rows: dict[str, Counter[str]]) -> str:
    """Return the rows as a table of Markdown."""
    lines = ["| storm | " + " | ".join(COLUMNS) + " |", "|---|" + "--:|" * len(COLUMNS)]
    for kind, row in rows.items():
        lines.append(f"| {kind} | " + " | ".join(f"{row[column]:,}" for column in COLUMNS) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
