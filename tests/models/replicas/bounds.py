"""How much of the world a search looks at."""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
    """`epochs`: the number of leader epochs. `restarts`: how often replicas die and come back, some with a
    lost tail or an empty disk. `losses`: fetch answers may be lost. `late`: the number of fetch answers that
    are on their way while other things happen.
    """

    replicas: int = 2
    records: int = 3
    epochs: int = 4
    restarts: int = 0
    late: int = 0
    losses: bool = False
    min_isr: int = 1
    states: int = 10_000_000
