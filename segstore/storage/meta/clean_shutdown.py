"""The clean shutdown marker, `.kafka_cleanshutdown`: a file that exists if the store was closed cleanly, and
was not opened after that.

The file has Kafka's format (org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler). In place
of the broker epoch segstore writes a random number, and writes the same number into `.segstore/ends` and the
close note. If one of these has the marker's number, segstore wrote the marker, not a broker. In a replicated
store the marker has a real broker epoch, and its two JSON keys are in the reverse order of a broker's marker.
This module returns this epoch as the number `epoch | REPLICATED`; no other number has this bit. Threads: one,
at open and at close; any thread may call `read_marker`.
"""

from __future__ import annotations

import json
import os
import secrets
from typing import NamedTuple

from segstore import names
from segstore.errors import InvalidArgumentError
from segstore.files import Files
from segstore.storage.meta.framed import parse_json
from segstore.storage.meta.small_files import NOT_A_FILE

REPLICATED = 1 << 62
_OURS = b'{"brokerEpoch":'


class Left(NamedTuple):
    """How the last writer left a store.

    `clean`: there was a clean shutdown. `ends_hold`: the last writer wrote `.segstore/ends`, because no
    broker has closed the directory after segstore. `gaps_known`: no broker was killed in this directory after
    segstore had closed it, so the checkpoints show each compaction that may have left offset gaps.
    """

    clean: bool
    ends_hold: bool
    gaps_known: bool

    @classmethod
    def of(cls, marker: int | None, nonce: int, *, ours: bool = False) -> Left:
        """Return what the number in the `marker` and the `nonce` in `.segstore/ends` show together. If
        `ours`, segstore was the last writer. Then a marker without a number is damaged, because segstore
        writes a number into each marker.
        """
        clean = marker is not None and not (marker == 0 and ours)
        # A broker was killed here if `nonce` is not 0, and there is no marker.
        return cls(clean, nonce == (marker or 0) and marker != 0, marker is not None or nonce == 0)


def replicated_nonce(broker_epoch: int) -> int:
    """Return the number that stands for a replicated store's broker epoch in this module. Raises
    InvalidArgumentError.
    """
    if not 0 < broker_epoch < REPLICATED:
        raise InvalidArgumentError(f"broker_epoch={broker_epoch}: must be from 1 to {REPLICATED - 1}")
    return broker_epoch | REPLICATED


def broker_epoch_of(marker: int | None) -> int:
    """Return the broker epoch for a `marker` number of a replicated store; -1 for any other number, or for
    None.
    """
    return marker - REPLICATED if marker is not None and marker > REPLICATED else -1


def read_marker(files: Files, root: str) -> int | None:
    """Return the number in the clean shutdown marker; None if there is no marker; 0 if the marker has no
    number, or is no regular file. Raises OSError.
    """
    try:
        data = files.read_file(os.path.join(root, names.CLEAN_SHUTDOWN), 4096)
        held = int(parse_json(data)["brokerEpoch"])
        return held | REPLICATED if data.startswith(_OURS) and 0 < held < REPLICATED else held
    except FileNotFoundError:  # this is also raised if another process removes the marker during the call
        return None
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0
    except OSError as error:
        if error.errno not in NOT_A_FILE:
            raise
        return 0


def take_marker(files: Files, root: str) -> int | None:
    """Remove the clean shutdown marker, durably. Return the result of `read_marker` before the removal.
    Raises OSError.
    """
    nonce = read_marker(files, root)
    if nonce is not None:
        files.unlink(os.path.join(root, names.CLEAN_SHUTDOWN))
        files.sync_dir(root)
    return nonce


def new_nonce() -> int:
    """Return a new random number for a clean shutdown marker."""
    return secrets.randbits(62) | 1


def put_marker(files: Files, root: str, nonce: int) -> None:
    """Write the clean shutdown marker with the number `nonce`, durably. Raises OSError."""
    held = {"version": 0, "brokerEpoch": nonce}
    if nonce > REPLICATED:
        held = {"brokerEpoch": nonce - REPLICATED, "version": 0}
    content = json.dumps(held, separators=(",", ":"))
    files.write_atomic(os.path.join(root, names.CLEAN_SHUTDOWN), content.encode())
