"""`quorum-state`: the latest leader epoch of the metadata log that a voter knows, and the voters in that
epoch (Kafka: FileQuorumStateStore, data version 0, which has the voters).

On disk is one small JSON file in the voter's folder `__cluster_metadata-0`. A truncation of the log changes
`leader-epoch-checkpoint`, but not `quorum-state`. So an epoch that is durable in `quorum-state` on a majority
is never used again, even if no batch was written under this epoch. Threads: any, but one at a time for each
directory.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files

_LONGEST = 1 << 20  # bytes
_MOST = (1 << 31) - 1  # the largest int32: epochs and ids are int32
_VERSIONS = (0, 1)  # Version 1, which earlier releases of segstore wrote, has no voters.


class QuorumState(NamedTuple):
    """The content of `quorum-state`. `epoch` is -1 if it is unknown. `voters` is () if they are unknown."""

    epoch: int = -1
    voters: tuple[int, ...] = ()


UNKNOWN = QuorumState()


def read_state(files: Files, directory: str) -> QuorumState:
    """Read `quorum-state`. Return UNKNOWN if the file is missing. Raises CorruptCheckpointError, OSError."""
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
        content = f"data version {version!r}, leader epoch {epoch!r}, voters {voters!r}"
        raise CorruptCheckpointError(path, 0, content)
    return QuorumState(epoch, tuple(voters))


def write_state(files: Files, directory: str, leader: int, state: QuorumState) -> None:
    """Write `quorum-state`, durably. The file's field `leaderId` becomes `leader`. Raises OSError."""
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
