"""Staged appends: any process writes batches into a store's inbox, and the store's writer appends each batch
to the log once.

A `Stager` writes batches; `seal` submits a set of batches to be appended, and `abort` removes batches that
were not sealed. docs/staging.md has an example, the files and the order of steps.
"""

from __future__ import annotations

from segstore.storage.staging import Adoption, Staged, StagedFile, Stager, abort, seal

__all__ = ["Adoption", "Staged", "StagedFile", "Stager", "abort", "seal"]
