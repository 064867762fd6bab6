"""`quorum-state`: the metadata's leader epoch that a voter has heard of, and who the voters were then (Kafka:
FileQuorumStateStore, data version 0, which names them).

On disk is one small file of JSON in the voter's `__cluster_metadata-0`. It outlives what a truncation makes
of `leader-epoch-checkpoint`: an epoch that is durable here on a majority is never given twice, also where no
batch was written under it. Threads: any, one at a time for one directory.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files

_LONGEST = 1 << 20  # bytes
_MOST = (1 << 31) - 1  # an epoch and an id are int32
_VERSIONS = (0, 1)  # 1 names no voters: segstore has written it


class QuorumState(NamedTuple):
    """`epoch` is -1, and `voters` are none, where they are not known."""

    epoch: int = -1
    voters: tuple[int, ...] = ()


UNKNOWN = QuorumState()


def read_state(files: Files, directory: str) -> QuorumState:
    """Return what the file says, UNKNOWN where there is none. Raises CorruptCheckpointError, OSError."""
    path = os.path.join(directory, names.QUORUM_STATE)
    try:
        held = json.loads(files.read_file(path, _LONGEST))
        version, epoch = held["data_version"], held["leaderEpoch"]
        voters = [each["voterId"] for each in (held["currentVoters"] if version == 0 else ())]
    except FileNotFoundError:
        return UNKNOWN
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpointError(path, 0, f"no quorum state: {error}") from error
    if version not in _VERSIONS or not all(type(n) is int and 0 <= n <= _MOST for n in (epoch, *voters)):
        told = f"data version {version!r}, leader epoch {epoch!r}, voters {voters!r}"
        raise CorruptCheckpointError(path, 0, told)
    return QuorumState(epoch, tuple(voters))


def write_state(files: Files, directory: str, leader: int, state: QuorumState) -> None:
    """Write the state durably; `leader` is the voter that is named as the leader. Raises OSError."""
    held = {
        "clusterId": "",
        "leaderId": leader,
        "leaderEpoch": state.epoch,
        "votedId": -1,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": voter} for voter in state.voters],
        "data_version": 0,
    }
    path = os.path.join(directory, names.QUORUM_STATE)
    files.write_atomic(path, json.dumps(held, separators=(",", ":")).encode())
