"""Owns `.kafka_cleanshutdown`: there while the store was closed cleanly and nobody has opened it since.

The content is Kafka's (org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler), its broker
epoch a random number that the published ends hold too: so a broker's own clean shutdown is told from ours.
Threads: one, at open and at close.
"""

from __future__ import annotations

import json
import os
import secrets

from segstore import names
from segstore.files import Files


def take_marker(files: Files, root: str) -> int | None:
    """Remove the marker, durably: its number (0 where it holds none), None where there was none. OSError."""
    path = os.path.join(root, names.CLEAN_SHUTDOWN)
    if not files.exists(path):
        return None
    try:
        nonce = int(json.loads(files.read_file(path, 4096))["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        nonce = 0
    files.unlink(path)
    files.sync_dir(root)
    return nonce


def put_marker(files: Files, root: str) -> int:
    """Write the marker, durably: its number. OSError."""
    nonce = secrets.randbits(62) | 1
    content = json.dumps({"version": 0, "brokerEpoch": nonce}, separators=(",", ":"))
    files.write_atomic(os.path.join(root, names.CLEAN_SHUTDOWN), content.encode())
    return nonce
