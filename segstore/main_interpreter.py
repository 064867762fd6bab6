"""Makes `import segstore` fail in a subinterpreter.

NumPy does not support subinterpreters. The extension module of cramjam (PyO3) can be imported by only one
interpreter of a process, the first one that imports it. So `import segstore` fails in a subinterpreter before
it imports NumPy or cramjam, and the main interpreter can still import both.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The first is the name of CPython's private module for interpreters since 3.13, the second is its older name.
_MODULES = ("_interpreters", "_xxsubinterpreters")


def _module() -> Any:
    for name in _MODULES:
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


def _number(interpreter: Any) -> int:
    """Return the number of an interpreter. `interpreter` is its id or, since CPython 3.13, a tuple that
    begins with the number.
    """
    return int(interpreter[0] if isinstance(interpreter, tuple) else interpreter)


def check_main_interpreter() -> None:
    """Raise ImportError if this is a subinterpreter. A Python that has neither of the two modules in
    `_MODULES` has no subinterpreters.
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
