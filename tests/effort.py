"""How much of what a test draws by itself this run tries: `make test` less than `make test-all`.

tests/tiers.py sets the share before each test. Assertions are the same whatever it is.
"""

from __future__ import annotations

import math

share = 1.0


def some(n: int) -> int:
    """Of `n` draws, those that this run makes: at least one."""
    return max(1, math.ceil(n * share))
