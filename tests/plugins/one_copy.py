"""Fails the last test of a file that leaves a module of the package in two copies. Writes nothing.

A test that takes modules out of `sys.modules`, and puts only those back that it found, lets the next import
make a second copy. Its enums and classes are others than those that older modules hold: tests fail that come
later in the same process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

_reported: set[str] = set()
"""A stray module is the fault of one file: those that come later don't fail for it."""


def strays() -> Iterator[str]:
    """Yield the modules that a package has as an attribute, and `sys.modules` has not."""
    for package_name, package in list(sys.modules.items()):
        if package_name.partition(".")[0] != "segstore" or not hasattr(package, "__path__"):
            continue
        for name, value in list(vars(package).items()):
            full = f"{package_name}.{name}"
            is_child = isinstance(value, ModuleType) and value.__name__ == full
            if is_child and sys.modules.get(full) is not value:
                yield full


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path != item.path:  # a look takes 2 ms
        found = set(strays()) - _reported
        _reported.update(found)
        assert not found, f"sys.modules has not the same modules any more: {sorted(found)}"
