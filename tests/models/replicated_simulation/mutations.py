"""Faults that could be made in the shell and the engine of replicas, and some of the core's, each as one
change.

The core's own are found by the search in `replicas`; here those stand that need files, threads or crashes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from replicas import mutations as core

from segstore.storage.log.replica import Replica, Truncated


class Mutation(NamedTuple):
    """What is put in place of an attribute, and the seed that finds it."""

    owner: Any
    name: str
    value: Any
    seed: int = 0


def _of_core(name: str, seed: int) -> Mutation:
    found = core.FOUND_BY_SEARCH[name]
    return Mutation(found.owner, found.name, found.value, seed)


MUTATIONS: dict[str, Mutation] = {
    "acks=all answered at the log end": _of_core("acks=all answered at the log end", 5),
    "election outside of the ISR": _of_core("election outside of the ISR", 0),
    "a log is not cut": Mutation(
        Replica, "truncate_to", lambda self, offset: Truncated(min(offset, self.log_end_offset)), 15
    ),
    "a leader's epoch is not in its log": Mutation(Replica, "_assign", lambda self, epoch: None),
}
