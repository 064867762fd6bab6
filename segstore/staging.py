"""Staged appends: any process writes batches into a store's inbox; the store's writer adopts them, once.

A `Stager` writes batches, `seal` names those that belong together, `abort` removes those that were not
sealed. docs/staging.md has an example, the files and the order of steps.
"""

from __future__ import annotations

from segstore.storage.staging import Adoption, Staged, StagedFile, Stager, abort, seal

__all__ = ["Adoption", "Staged", "StagedFile", "Stager", "abort", "seal"]
