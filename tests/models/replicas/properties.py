"""What must hold in every state, and from one to the next: P1 to P8 of docs/replication.md, but those about
transactions.
"""

from __future__ import annotations

from functools import cache

from replicas.frozen import ReplicaKey, State
from segstore.leader_epochs import LeaderEpochCache


def broken(state: State) -> str:
    """The property that does not hold in a state, and where; "" where all hold."""
    return (
        _log_matching(state)
        or _committed_stays(state)
        or _strong_isr(state)
        or _one_leader(state)
        or _high_watermarks(state)
        or _epochs(state)
    )


def went_back(before: State, after: State) -> str:
    """P7: the high watermark of a replica never goes back while it leads."""
    for replica, (old, new) in enumerate(zip(before.replicas, after.replicas, strict=True)):
        if new.high_watermark < old.high_watermark and _leads_on(old, new):
            return f"P7: leader {replica} went back from {old.high_watermark} to {new.high_watermark}"
    return ""


def _leads_on(old: ReplicaKey, new: ReplicaKey) -> bool:
    return old.role.kind == new.role.kind == "leader" and old.role.epoch == new.role.epoch


def _log_matching(state: State) -> str:
    """P1: the same epoch at the same offset is the same record, there and below."""
    for at, mine in enumerate(state.replicas):
        for other in range(at):
            theirs = state.replicas[other]
            for offset in range(min(len(mine.records), len(theirs.records)) - 1, -1, -1):
                if mine.records[offset][1] == theirs.records[offset][1]:
                    if mine.records[: offset + 1] != theirs.records[: offset + 1]:
                        return f"P1: {at} has {mine.records}, {other} has {theirs.records}"
                    break
    return ""


def _committed_stays(state: State) -> str:
    """P2, P4, P6: what was shown or acknowledged is in the log of the leader, and is what all others show."""
    promised, now = state.promised, state.history[-1]
    for replica, key in enumerate(state.replicas):
        shown = key.records[: key.high_watermark]
        if shown != promised[: key.high_watermark]:
            return f"P6: {replica} shows {shown}, but {promised} was promised"
        leads = key.role.kind == "leader" and key.role.epoch == now.leader_epoch
        if leads and key.records[: len(promised)] != promised:
            return f"P2: leader {replica} has {key.records}, but {promised} was promised"
    return ""


def _strong_isr(state: State) -> str:
    """P3: all members of ISR and ELR have what any leader has shown."""
    promised, now = state.promised, state.history[-1]
    for member in now.isr + now.elr:
        records = state.replicas[member].records
        if records[: len(promised)] != promised:
            return f"P3: {promised} was promised, but {member} of the ISR or ELR has {records}"
    return ""


def _one_leader(state: State) -> str:
    """P5: an epoch has one leader."""
    epochs = [key.role.epoch for key in state.replicas if key.role.kind == "leader"]
    return f"P5: of the leaders' epochs {epochs} two are equal" if len(epochs) > len(set(epochs)) else ""


def _high_watermarks(state: State) -> str:
    """P7: the high watermark is within the log."""
    for replica, key in enumerate(state.replicas):
        if key.high_watermark > len(key.records):
            return f"P7: {replica} shows {key.high_watermark} of {len(key.records)} records"
    return ""


def _epochs(state: State) -> str:
    """P8: the epochs are those of the records; a leader's own may begin behind the last of them."""
    for replica, key in enumerate(state.replicas):
        if not _are_those_of(key.epochs, key.records):
            return f"P8: {replica} has the epochs {key.epochs}, and the records {key.records}"
    return ""


@cache
def _are_those_of(epochs: tuple[tuple[int, int], ...], records: tuple[tuple[int, int], ...]) -> bool:
    known = LeaderEpochCache(epochs)
    if epochs and epochs[-1][1] > len(records):
        return False
    return [known.epoch_for_offset(at) for at in range(len(records))] == [epoch for _, epoch in records]
