"""`Fence`: the file `.segstore/fence`, a `CheckedFile`, which says that the store was demoted, because its
standby leads from a later leader epoch on.

A store with a fence refuses appends and changes of topics, in every process. Threads: any, because a `Fence`
never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from segstore import names
from segstore.storage.meta.checked_file import CheckedFile


@dataclass(frozen=True)
class Fence:
    """The demotion of a store. The node with the id `leader` leads from `leader_epoch` on. `directory_id` is
    the id of that node's directory, "" if it is not known. `at_ms` is the time of the demotion. `why` is a
    text with the reason.
    """

    leader_epoch: int
    leader: int
    directory_id: str
    at_ms: int
    why: str

    def message(self, root: str) -> str:
        """Return the text of the error that refuses an append."""
        return (
            f"{root} was demoted: node {self.leader} leads from leader epoch {self.leader_epoch} on "
            f"({self.why}); "
            f'`segstore follow HOST:PORT {root}` lets it follow the new primary, mode="r" reads it, and '
            f"`segstore unfence {root}` lets it lead again, if no other node does"
        )


def _made(held: dict[str, Any]) -> Fence:
    fence = Fence(**held)
    if type(fence.leader_epoch) is not int or type(fence.leader) is not int:
        raise ValueError(f"leader epoch {fence.leader_epoch!r} of node {fence.leader!r}")
    return fence


FENCE = CheckedFile(names.FENCE, "fence", _made, 1 << 16)
