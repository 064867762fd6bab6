"""Refuses an import of this package in a subinterpreter.

NumPy does not support subinterpreters, and cramjam's module (PyO3) can be imported in only one interpreter of
a process, the first one that imports it. So in a subinterpreter `import segstore` fails before it imports
NumPy or cramjam, and the main interpreter can still import both.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The name of CPython's private module of interpreters since 3.13, and its name before.
_MODULES = ("_interpreters", "_xxsubinterpreters")


def _module() -> Any:
    for name in _MODULES:
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


def _number(interpreter: Any) -> int:
    """Return the number of an interpreter from a result of `get_current` or `get_main`, which since 3.13 is
    (number, whence).
    """
    return int(interpreter[0] if isinstance(interpreter, tuple) else interpreter)


def check_main_interpreter() -> None:
    """Raise ImportError in a subinterpreter. A Python without the modules in `_MODULES` has no
    subinterpreters.
    """
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
