"""Staged appends: any process writes batches into the inbox; the store's one writer adopts them (appends
them, once).

docs/staging.md has the files and the order of steps. `Stager` writes, `seal` groups staged files into one
append, `abort` removes files that were not sealed. In `inbox.inbox` the writer adopts the sealed files.
"""

from __future__ import annotations

from segstore.storage.inbox.known_ids import Adoption
from segstore.storage.inbox.staged_file import Staged, StagedFile
from segstore.storage.inbox.stager import Stager
from segstore.storage.staging.seal import abort, seal

__all__ = ["Adoption", "Staged", "StagedFile", "Stager", "abort", "seal"]
