"""The kinds of storms: what is said of each is a field of `plan.Plan`."""

from __future__ import annotations

from typing import Any

KINDS: dict[str, dict[str, Any]] = {
    "steps": {},
    "from outside": {"die": (0, 0, 0.0002), "outside": 0.45, "fences": False},
    "fences": {
        "stop": (0.002, 0.006),
        "stopped_ms": 20,
        "goes_on": 0.15,
        "die": (0, 0.001),
        "outside": 0.03,
        "guests": 0.5,
        "members": 5,
    },
    "cuts": {
        "one_size": True,
        "looks_behind": True,
        "dies_at": ("WRITTEN", "INDEXED", "FILLED", "HALF_WRITE"),
        "die": (0.02,),
        "pause": (0.3,),
        "outside": 0.02,
        "all_killed": 0.9,
        "guests": 0.5,
        "fences": False,
    },
    "hosts": {
        "dies_at": (
            *("CLOSING", "CLOSED", "SHOWING", "SHOWN", "OPENING", "OPENED", "TAKING_OVER", "TAKEN_OVER"),
            *("NOTED", "TAKEN", "SEALING", "SEALED", "FENCED", "TOGETHER", "TOGETHER_BEGUN", "TOGETHER_ONE"),
            *("TOGETHER_DONE", "SYNCING", "SYNCED", "REPAIR", "CUT", "ASKED", "ANSWERED", "FROM_DEAD"),
        ),
        "die": (0.01, 0.05),
        "outside": 0.02,
        "transactions": 0.3,
        "guests": 0.1,
        "stopped_ms": 20,
        "stop": (0, 0.002, 0.004),
        "goes_on": 0.2,
    },
    "hosts in fences": {
        "dies_at": ("NOTED", "TAKEN", "SEALING", "SEALED", "FENCED"),
        "die": (0.1, 0.3),
        "members": 5,
        "stop": (0.002, 0.006),
        "stopped_ms": 20,
        "goes_on": 0.15,
        "outside": 0.03,
        "guests": 0.3,
    },
    "hosts in transactions": {
        "dies_at": ("TOGETHER", "TOGETHER_BEGUN", "TOGETHER_ONE", "TOGETHER_DONE"),
        "die": (0.05, 0.2),
        "transactions": 0.4,
        "outside": 0.02,
        "guests": 0.0,
        "fences": False,
    },
    "eight members": {"members": 8},
    "durable": {"durable": 0.5},
    "transactions": {"transactions": 0.1, "guests": 0.1},
    "guests": {"guests": 0.7},
    "namespaces": {"apart": True},
}
