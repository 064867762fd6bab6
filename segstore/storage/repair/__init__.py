"""`repair`: damage that `check` finds is repaired as far as possible.

On disk any file of a store may change. Processes: the repair is the store's one writer while it runs.
Threads: one. Read `repair` first: it has the order of steps. `checkpoints` comes before the store is opened,
which finishes the work of a crashed writer; `corruption` finds damage in logs and takes it out;
`producer_files` and `settings` make small files anew. Each step may be killed and repeated.
"""

from __future__ import annotations

from segstore.storage.finding import Repaired
from segstore.storage.repair.repair import repair

__all__ = ["Repaired", "repair"]
