"""Which transfer methods this machine has. Nothing on disk. Threads: any."""

from __future__ import annotations

from segstore.files import Files
from segstore.storage.transfer.methods import METHODS


def transfer_methods() -> dict[str, str | None]:
    """For each method of `PartitionLog.transfer`: None where it is available here, else why it is not."""
    files = Files()
    return {method: files.why_not(method) for method in METHODS}
