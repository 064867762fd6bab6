"""Refuses to be imported by a subinterpreter. Nothing on disk.

NumPy does not support subinterpreters, and cramjam's module (PyO3) can be imported by one interpreter of a
process only: whichever comes first keeps it from all others. So `import segstore` fails at once, before it
imports either, and the main interpreter goes on as if nothing had been tried.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# CPython's own names for one module, private in each: from 3.13 on, and before.
_MODULES = ("_interpreters", "_xxsubinterpreters")


def _module() -> Any:
    for name in _MODULES:
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


def _number(interpreter: Any) -> int:
    """Of what `get_current` and `get_main` give: from 3.13 on (number, whence)."""
    return int(interpreter[0] if isinstance(interpreter, tuple) else interpreter)


def check_main_interpreter() -> None:
    """ImportError in a subinterpreter. An interpreter without that module has no subinterpreters."""
    module = _module()
    if module is None:
        return
    current = _number(module.get_current())
    if current != _number(module.get_main()):
        raise ImportError(
            f"segstore can't be imported in subinterpreter {current}: NumPy and cramjam, which it needs, do "
            "not support that. Import it in the main interpreter (mod_wsgi: WSGIApplicationGroup %{GLOBAL})"
        )


check_main_interpreter()
