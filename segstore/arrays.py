"""Imports NumPy when the first array is made. This module touches no files.

A process that only appends, reads records one at a time, or answers clients makes no array, and does not
import NumPy: that import takes three times as long as the import of segstore without NumPy.

Threads: any. The import runs in a thread of its own (`first_use`).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from segstore.first_use import import_apart

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import TypeIs
else:

    def _attribute(name: str) -> Any:
        """Return an attribute of NumPy, and store it in this module's `np` for later uses."""
        if name.startswith("__"):
            raise AttributeError(name)
        value = np.__dict__[name] = getattr(import_apart("numpy"), name)
        return value

    np = ModuleType("segstore.arrays.np", "NumPy; the first use of an attribute imports it.")
    np.__getattr__ = _attribute

__all__ = ["is_array", "is_numpy_bool", "np"]


def is_array(value: object) -> TypeIs[np.ndarray[Any, Any]]:
    """Return whether a value is an array, without importing NumPy: before its import no array exists."""
    return "numpy" in sys.modules and isinstance(value, np.ndarray)


def is_numpy_bool(value: object) -> bool:
    """Return whether a value is a NumPy boolean, without importing NumPy."""
    return "numpy" in sys.modules and isinstance(value, np.bool_)
