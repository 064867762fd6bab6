"""Staged appends: any process writes batches into a store's inbox, and the store's writer adopts each batch
once.

A `Stager` writes batches; `seal` submits a set of batches for adoption, and `abort` removes batches that were
not sealed. docs/staging.md has an example, the files and the order of steps.
"""

from __future__ import annotations

from segstore.storage.staging import Adoption, Staged, StagedFile, Stager, abort, seal

__all__ = ["Adoption", "Staged", "StagedFile", "Stager", "abort", "seal"]
