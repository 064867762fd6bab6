"""`quorum-state`: the metadata's leader epoch that a voter has heard of (Kafka: FileQuorumStateStore, data
version 1).

On disk is one small file of JSON in the voter's `__cluster_metadata-0`. It outlives what a truncation makes
of `leader-epoch-checkpoint`: an epoch that is durable here on a majority is never given twice, also where no
batch was written under it. Threads: any, one at a time for one directory.
"""

from __future__ import annotations

import json
import os

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files

_LONGEST = 4096  # bytes
_NOBODY = "AAAAAAAAAAAAAAAAAAAAAA"
_MOST = (1 << 31) - 1  # a leader epoch is an int32


def read_epoch(files: Files, directory: str) -> int:
    """Return the epoch, -1 where there is no file. Raises CorruptCheckpointError, OSError."""
    path = os.path.join(directory, names.QUORUM_STATE)
    try:
        held = json.loads(files.read_file(path, _LONGEST))
        version, epoch = held["data_version"], held["leaderEpoch"]
    except FileNotFoundError:
        return -1
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpointError(path, 0, f"no quorum state: {error}") from error
    if version != 1 or type(epoch) is not int or not 0 <= epoch <= _MOST:
        raise CorruptCheckpointError(path, 0, f"data version {version!r}, leader epoch {epoch!r}")
    return epoch


def write_epoch(files: Files, directory: str, voter: int, epoch: int) -> None:
    """Write the epoch, under which `voter` is named as the leader, durably. Raises OSError."""
    held = {
        "leaderId": voter,
        "leaderEpoch": epoch,
        "votedId": -1,
        "votedDirectoryId": _NOBODY,
        "data_version": 1,
    }
    path = os.path.join(directory, names.QUORUM_STATE)
    files.write_atomic(path, json.dumps(held, separators=(",", ":")).encode())
