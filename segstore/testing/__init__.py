"""A server of Kafka's wire protocol, for tests with any Kafka client. It runs in the test's process, is ready
at once, and injects faults if a test asks for them. See docs/testing.md. `segstore.testing.plugin` has
fixtures for pytest. The other modules are imported when a name of this package is first used, because each
run of pytest imports the plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .broker import Broker
    from .clock import Clock
    from .faults import Fault, Faults
    from .request_log import LoggedRequest

__all__ = ["Broker", "Clock", "Fault", "Faults", "LoggedRequest"]

_WHERE = {
    "Broker": "broker",
    "Clock": "clock",
    "Fault": "faults",
    "Faults": "faults",
    "LoggedRequest": "request_log",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
