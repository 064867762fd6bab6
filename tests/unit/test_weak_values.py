"""Promise: as an object dies no Python code of segstore's runs that could be interrupted: what is raised in
the callback of a weak reference CPython prints and forgets, and Ctrl-C would be lost.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from places import REPOSITORY

import segstore
from segstore.storage.store.clients import Clients, Turn
from segstore.threads import LiveSet
from segstore.weak_values import FEW, WeakValues


class Thing:
    turn = Turn.READER


def test_a_value_is_there_as_long_as_it_lives() -> None:
    values, thing = WeakValues[str, Thing](), Thing()
    assert values.get("a") is None
    values["a"] = thing
    assert (values.get("a"), values.items()) == (thing, [("a", thing)])
    values["a"] = other = Thing()
    del thing
    assert values.get("a") is other
    del other
    assert (values.get("a"), values.items()) == (None, [])


def test_an_entry_is_removed() -> None:
    values, thing = WeakValues[str, Thing](), Thing()
    values["a"] = thing
    values.pop("a")
    values.pop("a")
    assert values.get("a") is None


def test_dead_entries_are_bounded_and_none_that_lives_is_dropped() -> None:
    values, kept = WeakValues[int, Thing](), {}
    for number in range(50 * FEW):
        thing = values[number] = Thing()
        if not number % 50:
            kept[number] = thing
    assert dict(values.items()) == {**kept, number: thing}
    assert len(values._refs) <= 2 * FEW + 2


def _weak_values() -> object:
    values, thing = WeakValues[int, Thing](), Thing()
    values[1] = thing
    return values, thing


def _client() -> object:
    clients, thing = Clients("a store"), Thing()
    clients.attach(thing)  # type: ignore[arg-type]
    return clients, thing


def _live_set() -> object:
    live, thing = LiveSet[Thing](), Thing()
    live.add(thing)
    return live, thing


@pytest.mark.parametrize("make", [_weak_values, _client, _live_set])
def test_no_python_code_runs_as_an_object_dies(make: Callable[[], tuple[object, object]]) -> None:
    holder, thing = make()
    called: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        del thing
    finally:
        sys.setprofile(before)
        gc.enable()
    assert called == []
    assert holder is not None


PYTHON_CALLBACKS = {"WeakValueDictionary", "WeakKeyDictionary", "WeakSet", "WeakMethod", "finalize"}
IN_C = {"discard", "partial"}
"""Callbacks that run no Python code: a method of a set, and a partial one of a dict."""


def _wrong(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name in PYTHON_CALLBACKS:
        return True
    if name != "ref" or len(call.args) < 2:
        return False
    callback = call.args[1]
    callback = callback.func if isinstance(callback, ast.Call) else callback
    return getattr(callback, "attr", getattr(callback, "id", "")) not in IN_C


def test_no_other_kind_of_callback_is_used() -> None:
    package = Path(segstore.__file__).parent
    assert package == REPOSITORY / "segstore"
    found = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _wrong(node)
    ]
    assert found == []


def test_the_rule_finds_what_it_is_for() -> None:
    for text in ("weakref.ref(a, lambda _: b.pop(c))", "WeakValueDictionary()", "weakref.ref(a, self.gone)"):
        assert _wrong(ast.parse(text, mode="eval").body), text  # type: ignore[arg-type]
    for text in ("weakref.ref(a)", "weakref.ref(a, partial(b.pop, c))", "weakref.ref(a, refs.discard)"):
        assert not _wrong(ast.parse(text, mode="eval").body), text  # type: ignore[arg-type]
