"""`repair`: what `check` finds and can be put right again is put right.

On disk: everything of a store. Processes: it is the store's one writer meanwhile. Threads: one.
Read `repairing` first: the order of steps. `checkpoints` comes before the store is opened, which settles what
a crash left; `rot` finds damage in logs and `excising` takes it out; `mending` does the small files, at rest.
Each step may be killed: what is done again does no harm.
"""

from __future__ import annotations

from segstore.storage.finding import Repaired
from segstore.storage.repair.repair import repair

__all__ = ["Repaired", "repair"]
