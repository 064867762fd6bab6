"""Runs of pytest with `segstore.testing.plugin`, as a user's, within this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

Run = Callable[[str], pytest.RunResult]


class Noting:
    """A plugin that notes which modules there are at the end of a run."""

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        self._modules = modules

    def pytest_unconfigure(self) -> None:
        self._modules.update(sys.modules)


@pytest.fixture
def kept_modules() -> Iterator[dict[str, ModuleType]]:
    """Modules that are there again once `pytester`, which is made later, has forgotten them."""
    kept: dict[str, ModuleType] = {}
    yield kept
    for name, module in kept.items():
        sys.modules.setdefault(name, module)


@pytest.fixture
def run_with_plugin(
    kept_modules: dict[str, ModuleType], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs the tests of a text. Modules that the run was the first to import stay, but its own: pytester
    forgets them, and the next import would make another copy. The classes and enums of the two differ, and
    older modules go on with those of the first.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(text: str) -> pytest.RunResult:
        pytester.makepyfile(text)
        modules: dict[str, ModuleType] = {}
        result = pytester.runpytest_inprocess(
            "-p", "segstore.testing.plugin", "-q", plugins=[Noting(modules)]
        )
        own = str(pytester.path)
        for name, module in modules.items():
            if not str(getattr(module, "__file__", "")).startswith(own):
                kept_modules.setdefault(name, module)
        return result

    return run
