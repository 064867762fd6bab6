"""What tests of tables count: the records that are there, and the reads of them."""

from __future__ import annotations

from typing import NamedTuple

from segstore.storage.scans.bounds import Bounds

RECORDS = 60
"""Of each of the three partitions, six in a batch, a second apart."""


class Read(NamedTuple):
    """One iteration of a table's batches. `rows` are those of each batch that was taken."""

    columns: list[str]
    bounds: Bounds
    rows: list[int]
    ended: list[bool]
