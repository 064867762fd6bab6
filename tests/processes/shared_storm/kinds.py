"""The kinds of storms: what is said of each is a field of `plan.Plan`."""

from __future__ import annotations

from typing import Any

KINDS: dict[str, dict[str, Any]] = {
    "steps": {},
    "from outside": {"steps": False, "fences": False},
    "eight members": {"members": 8},
    "durable": {"durable": 0.5},
    "transactions": {"transactions": 0.1, "guests": 0.1},
    "guests": {"guests": 0.7},
    "namespaces": {"apart": True},
}
