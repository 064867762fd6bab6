"""`repair`: repairs the damage that `check` finds, as far as possible.

Any file of a store may change. Processes: the repair is the store's one writer while it runs. Threads: one.
Read the module `repair` first, which has the order of steps. `checkpoints` repairs files before the store is
opened; the open finishes the work of a crashed writer. `corruption` finds damage in logs, and removes the
damage. `producer_files` and `settings` rewrite small files. If the process is killed during any step, the
repair may be repeated.
"""

from __future__ import annotations

from segstore.storage.finding import Repaired
from segstore.storage.repair.repair import repair

__all__ = ["Repaired", "repair"]
