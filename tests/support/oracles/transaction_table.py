"""What Kafka answers for a transactional id, by its state and the request: of clients that know KIP-890 (the
highest versions here) and of older ones. A test holds a real broker against this table, another one segstore.

A cell has the codes for the producer's current epoch, the one before, and one that is above; InitProducerId
begins with the code for a producer that comes anew. Behind a "+" is by how much the answered epoch lies above
the current one; "new" is another producer id.

0 NONE, 19 NOT_ENOUGH_REPLICAS, 47 INVALID_PRODUCER_EPOCH, 48 INVALID_TXN_STATE,
49 INVALID_PRODUCER_ID_MAPPING, 51 CONCURRENT_TRANSACTIONS, 90 PRODUCER_FENCED, 120 TRANSACTION_ABORTABLE
"""

from __future__ import annotations

from transaction_states import REQUESTS, Answer, Cell

from segstore.protocol.error_codes import Code

GROUPS = {
    "unknown": ("unknown",),
    "empty": ("empty", "taken over while ongoing"),
    "ongoing": ("ongoing", "ongoing again, v4", "ongoing again, v5"),
    "prepared": ("prepare commit, v4", "prepare commit, v5", "prepare abort, v4", "prepare abort, v5"),
    "committed, v4": ("complete commit, v4",),
    "committed, v5": ("complete commit, v5",),
    "aborted, v4": ("complete abort, v4",),
    "aborted, v5": ("complete abort, v5", "abort of nothing, v5"),
    "timed out": ("timed out",),
}
"""States with the same answers."""

TABLES = (
    """
              | InitProducerId v3   | InitProducerId v5
unknown       | 0new 0new 0new 0new | 0new 0new 0new 0new
empty         | 0+1 0+1 47 47       | 0+1 0+1 90 90
ongoing       | 0+2 0+1 47 0+2      | 0+2 0+1 90 0+2
prepared      | 51 51 51 51         | 51 51 51 51
committed, v4 | 0+1 0+1 47 47       | 0+1 0+1 90 90
committed, v5 | 0+1 0+1 0+0 47      | 0+1 0+1 0+0 90
aborted, v4   | 0+1 0+1 47 47       | 0+1 0+1 90 90
aborted, v5   | 0+1 0+1 0+0 47      | 0+1 0+1 0+0 90
timed out     | 0+2 0+1 47 0+2      | 0+2 0+1 90 0+2
""",
    """
              | EndTxn v4 commit | EndTxn v4 abort | EndTxn v5 commit | EndTxn v5 abort
unknown       | 49 49 49         | 49 49 49        | 49 49 49         | 49 49 49
empty         | 48 90 90         | 48 90 90        | 48 90 90         | 0+1 90 90
ongoing       | 0 90 90          | 0 90 90         | 0+1 90 90        | 0+1 90 90
prepared      | 51 90 90         | 51 90 90        | 51 51 51         | 51 51 51
committed, v4 | 0 90 90          | 48 90 90        | 48 0+0 90        | 0+1 48 90
committed, v5 | 0 90 90          | 48 90 90        | 48 0+0 90        | 0+1 48 90
aborted, v4   | 48 90 90         | 0 90 90         | 48 48 90         | 0+1 0+0 90
aborted, v5   | 48 90 90         | 0 90 90         | 48 48 90         | 0+1 0+0 90
timed out     | 90 90 48         | 90 90 0         | 48 90 48         | 0+1 90 0+2
""",
    """
              | AddPartitionsToTxn v3 | AddOffsetsToTxn v4 | TxnOffsetCommit v3 | TxnOffsetCommit v5
unknown       | 49 49 49              | 49 49 49           | 49 49 49           | 49 49 49
empty         | 0 90 90               | 0 90 90            | 48 47 47           | 0 47 47
ongoing       | 0 90 90               | 0 90 90            | 48 47 47           | 0 47 47
prepared      | 51 51 51              | 51 51 51           | 51 47 47           | 51 51 51
committed, v4 | 0 90 90               | 0 90 90            | 48 47 47           | 0 47 47
committed, v5 | 0 90 90               | 0 90 90            | 48 47 47           | 0 47 47
aborted, v4   | 0 90 90               | 0 90 90            | 48 47 47           | 0 47 47
aborted, v5   | 0 90 90               | 0 90 90            | 48 47 47           | 0 47 47
timed out     | 90 90 0               | 90 90 0            | 47 47 48           | 47 47 0
""",
    """
              | Produce v11, own | Produce v12, own | Produce v11, another | Produce v12, another
unknown       | 49 49 49         | 49 49 49         | 49 49 49             | 49 49 49
empty         | 120 47 47        | 0 47 47          | 120 47 47            | 0 47 47
ongoing       | 0 47 47          | 0 47 47          | 120 47 47            | 0 47 47
prepared      | 19 47 47         | 51 51 51         | 19 47 47             | 51 51 51
committed, v4 | 120 47 47        | 0 47 47          | 120 47 47            | 0 47 47
committed, v5 | 120 47 47        | 0 47 47          | 120 47 47            | 0 47 47
aborted, v4   | 120 47 47        | 0 47 47          | 120 47 47            | 0 47 47
aborted, v5   | 120 47 47        | 0 47 47          | 120 47 47            | 0 47 47
timed out     | 47 47 120        | 47 47 0          | 47 47 120            | 47 47 0
""",
)


def _answer(text: str) -> Answer:
    if text.endswith("new"):
        return Answer(Code(int(text[:-3])), "new")
    code, plus, epoch = text.partition("+")
    return Answer(Code(int(code)), int(epoch) if plus else None)


def _parsed(text: str) -> dict[Cell, Answer]:
    head, *rows = [[part.strip() for part in line.split("|")] for line in text.strip("\n").split("\n")]
    found: dict[Cell, Answer] = {}
    for group, *cells in rows:
        for family, cell in zip(head[1:], cells, strict=True):
            requests = [each for each in REQUESTS if each.rpartition(", ")[0] == family]
            for state in GROUPS[group]:
                answers = zip(requests, map(_answer, cell.split()), strict=True)
                found |= {(state, request): answer for request, answer in answers}
    return found


EXPECTED: dict[Cell, Answer] = {cell: at for text in TABLES for cell, at in _parsed(text).items()}

_FENCED = {"v3": Answer(Code.INVALID_PRODUCER_EPOCH), "v5": Answer(Code.PRODUCER_FENCED)}
FORGOTTEN: dict[Cell, Answer] = {
    (state, f"InitProducerId {version}, {epoch} epoch"): fenced
    for state, epoch in (
        ("complete commit, v5", "previous"),
        ("complete abort, v5", "previous"),
        ("abort of nothing, v5", "previous"),
        ("timed out", "current"),
    )
    for version, fenced in _FENCED.items()
}
"""What a broker answers otherwise once it was restarted: it keeps a producer's last epoch in memory only.
segstore has it from the log, and answers as before.
"""

STRICTER: dict[Cell, Answer] = {
    **{
        (state, f"InitProducerId {version}, next epoch"): fenced
        for state in GROUPS["ongoing"]
        for version, fenced in _FENCED.items()
    },
    **{
        (state, f"EndTxn v5 {end}, previous epoch"): _FENCED["v5"]
        for state in ("complete commit, v4", "complete abort, v4")
        for end in ("commit", "abort")
    },
}
"""What segstore answers otherwise. A broker ends an ongoing transaction for a producer of any epoch, before
it looks at that epoch. And once a producer that keeps its epoch has committed, a broker tells the producer
before it that its own records are committed.
"""

_PARTITION_KNOWS = {
    "complete commit, v5": ("previous",),
    "timed out": ("current", "previous"),
}
EXPIRED: dict[Cell, Answer] = {
    (state, request): EXPECTED["unknown", request]
    for state in ("empty", "complete commit, v5", "timed out")
    for request in REQUESTS
} | {
    (state, f"Produce {version}, own, {epoch} epoch"): Answer(Code.INVALID_PRODUCER_EPOCH)
    for state, epochs in _PARTITION_KNOWS.items()
    for epoch in epochs
    for version in ("v11", "v12")
}
"""What is answered for ids that have expired: they are unknown, but partitions still know their epochs."""
