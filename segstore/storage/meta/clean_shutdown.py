"""The clean shutdown marker, `.kafka_cleanshutdown`: the store was closed cleanly and not opened since.

Together with the published ends it shows how the store was left. The content is Kafka's
(org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler). Its broker epoch is a random number
that the published ends hold too, which distinguishes segstore's clean shutdown from a broker's. A directory
of a replicated store has a real broker epoch in the marker, with the two keys in another order than a broker
writes them. This module returns such an epoch as the number `epoch | REPLICATED`; no other number has that
bit. Threads: one, at open and at close; `read_marker` any.
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
    """The state in which a store was left.

    `clean`: there was a clean shutdown. `ends_hold`: the published ends are the last writer's; no broker has
    closed the directory since. `gaps_known`: no broker has used the directory since and then been killed, so
    every compaction is known that may have left gaps.
    """

    clean: bool
    ends_hold: bool
    gaps_known: bool

    @classmethod
    def of(cls, marker: int | None, nonce: int, *, ours: bool = False) -> Left:
        """Return the state in which a store was left, by the numbers in the marker and in the published ends.
        `ours`: the last writer was segstore's, whose markers all have a number.
        """
        clean = marker is not None and not (marker == 0 and ours)
        # If a broker was killed, the published ends have a number, and there is no marker.
        return cls(clean, nonce == (marker or 0) and marker != 0, marker is not None or nonce == 0)


def replicated_nonce(broker_epoch: int) -> int:
    """Return the number of a replicated store's clean shutdown. Raises InvalidArgumentError."""
    if not 0 < broker_epoch < REPLICATED:
        raise InvalidArgumentError(f"broker_epoch={broker_epoch}: must be from 1 to {REPLICATED - 1}")
    return broker_epoch | REPLICATED


def broker_epoch_of(marker: int | None) -> int:
    """Return the broker epoch of a replicated store's clean close, -1 for any other marker or none."""
    return marker - REPLICATED if marker is not None and marker > REPLICATED else -1


def read_marker(files: Files, root: str) -> int | None:
    """Return the marker's number; 0 if it holds none or is no regular file, None if there is no marker.
    Raises OSError.
    """
    try:
        data = files.read_file(os.path.join(root, names.CLEAN_SHUTDOWN), 4096)
        held = int(parse_json(data)["brokerEpoch"])
        return held | REPLICATED if data.startswith(_OURS) and 0 < held < REPLICATED else held
    except FileNotFoundError:  # or another process has just removed it
        return None
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0
    except OSError as error:
        if error.errno not in NOT_A_FILE:
            raise
        return 0


def take_marker(files: Files, root: str) -> int | None:
    """Remove the marker, durably; return its number as `read_marker` does. Raises OSError."""
    nonce = read_marker(files, root)
    if nonce is not None:
        files.unlink(os.path.join(root, names.CLEAN_SHUTDOWN))
        files.sync_dir(root)
    return nonce


def new_nonce() -> int:
    """Return a new random number for a marker."""
    return secrets.randbits(62) | 1


def put_marker(files: Files, root: str, nonce: int) -> None:
    """Write the marker with a number, durably. Raises OSError."""
    held = {"version": 0, "brokerEpoch": nonce}
    if nonce > REPLICATED:
        held = {"brokerEpoch": nonce - REPLICATED, "version": 0}
    content = json.dumps(held, separators=(",", ":"))
    files.write_atomic(os.path.join(root, names.CLEAN_SHUTDOWN), content.encode())
