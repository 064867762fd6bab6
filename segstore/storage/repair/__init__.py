"""`repair`: repairs the damage that `check` finds, as far as possible.

Any file of a store may change. Processes: the repair is the store's one writer while it runs. Threads: one.
Read `repair` first: it has the order of steps. `checkpoints` repairs files before the store is opened; the
open finishes the work of a crashed writer. `corruption` finds damage in logs, and removes it.
`producer_files` and `settings` rewrite small files. Each step may be killed and repeated.
"""

from __future__ import annotations

from segstore.storage.finding import Repaired
from segstore.storage.repair.repair import repair

__all__ = ["Repaired", "repair"]
