"""Measures all cells, pass after pass, so that whatever the machine does meanwhile bears on all methods
alike.

On disk: nothing of its own. Threads: one. A pass goes through all groups, and within a group through its
contenders, each time beginning with another one. Before the passes that count comes one that does not: it
says how many transfers make a run, the same number for all contenders of a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from segstore.bench.results import Progress
from segstore.bench.zero_copy import machine_state
from segstore.bench.zero_copy.cells import Contender, Group, Plan
from segstore.bench.zero_copy.contenders import Ready
from segstore.bench.zero_copy.measure import Sample, sample
from segstore.bench.zero_copy.plan import Stretch
from segstore.bench.zero_copy.receivers import Sink
from segstore.files import Files

_TRIED_BYTES, _TRIED_MOST = 1 << 20, 64  # how much the first pass sends
_LEAST = {"warm": 4, "cold": 1}  # transfers in a run


@dataclass
class Measured:
    """A group that can be measured: where its bytes go and lie, and what sends them."""

    group: Group
    sink: Sink
    stretch: Stretch
    ready: Mapping[Contender, Ready]
    count: int = 0
    samples: dict[Contender, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    not_cold: dict[Contender, int] = field(default_factory=lambda: defaultdict(int))


def measure(groups: Sequence[Measured], plan: Plan, progress: Progress) -> None:
    """Fill in `samples` and `not_cold` of all groups: as many runs of each contender as the plan says."""
    total = plan.runs + 1
    for group in groups:
        progress(0, total, "how long a transfer takes")
        group.count = _count(group, plan)
    for turn in range(plan.runs):
        for group in groups:
            progress(turn + 1, total, f"pass {turn + 1} of {plan.runs}: {group.group.sink}")
            for contender in _turned(list(group.ready), turn):
                _run(group, contender)


def _run(group: Measured, contender: Contender) -> None:
    if _settled(group):
        group.samples[contender].append(_sample(group, group.ready[contender], group.count))
    else:
        group.not_cold[contender] += 1


def _settled(group: Measured) -> bool:
    """Bring the log into the page cache or out of it; False where some of it could not be dropped."""
    path = group.stretch.path
    if group.group.cache == "cold":
        return machine_state.evict(path) == 0
    if machine_state.resident(path) < machine_state.pages(path):
        Files().read_file(path)
    return True


def _count(group: Measured, plan: Plan) -> int:
    """How many transfers take `plan.seconds`, on an average of all contenders; not more bytes than the log
    has.
    """
    most = group.stretch.transfers
    tried = max(1, min(_TRIED_MOST, _TRIED_BYTES // group.group.size, most))
    seconds = 0.0
    for ready in group.ready.values():
        _settled(group)
        seconds += _sample(group, ready, tried).seconds / tried
    wanted = round(plan.seconds * len(group.ready) / seconds) if seconds else most
    return min(max(wanted, _LEAST[group.group.cache]), most)


def _sample(group: Measured, ready: Ready, count: int) -> Sample:
    with ready() as send:
        return sample(group.sink, send, group.group.size, range(count))


def _turned(contenders: list[Contender], turn: int) -> Iterator[Contender]:
    first = turn % len(contenders) if contenders else 0
    yield from (*contenders[first:], *contenders[:first])
