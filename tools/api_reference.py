"""Writes docs/reference/api.md: signatures and docstrings of public functions, and of public classes with
their public methods, inherited ones too. `dir()` of a class lists its public names.

Nothing is on disk: reference.py writes the page.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import segstore

WIDTH = 88
"""Columns of a signature that stays on one line."""
RETURNED_BY = {
    "Store": "open",
    "PartitionLog": "Store.partition",
    "Scan": "PartitionLog.scan",
    "Records": "PartitionLog.read",
    "Server": "serve",
    "ReplicatedStore": "open_replicated",
    "Mirror": "mirror",
    "MirrorTo": "mirror_to",
    "Standby": "follow",
}
"""Classes that no application calls, and where their objects come from."""


class Member(NamedTuple):
    """A public member of a class, as it stands in the class `owner`."""

    name: str
    value: Any
    owner: type

    @property
    def is_called(self) -> bool:
        return inspect.isroutine(self.value) or isinstance(self.value, (classmethod, staticmethod))

    @property
    def is_property(self) -> bool:
        return isinstance(self.value, property) or hasattr(self.value, "func")

    @property
    def has_entry(self) -> bool:
        return self.is_called or self.is_property


def members(cls: type) -> list[Member]:
    """Public members in the order of their classes' source, those of the class itself first."""
    found, listed = {}, set(dir(cls))
    for owner in cls.__mro__:
        if owner.__module__.startswith("segstore"):
            for name, value in vars(owner).items():
                if name in listed and not name.startswith("_"):
                    found.setdefault(name, Member(name, value, owner))
    return list(found.values())


def page(groups: Mapping[str, Iterable[str]], made: str) -> str:
    """The page, with the names of each group below its heading."""
    lines = ["# API", "", made, ""]
    lines += [
        "All of these are in `segstore`; `help(segstore.Consumer)` shows the same in Python. Errors are on "
        "[a page of their own](errors.md).",
        "",
        "| | names |",
        "|---|---|",
    ]
    for title, names in groups.items():
        lines.append(
            f"| {title} | {', '.join(f'[`{name}`](#{_anchor(_heading(name))})' for name in names)} |"
        )
    entries = [line for names in groups.values() for name in names for line in (name, *_keys(name))]
    anchors = {entry: _anchor(_heading(entry)) for entry in entries}
    for title, names in groups.items():
        lines += ["", f"## {title}"]
        for name in names:
            lines += ["", f"### {_heading(name)}", "", *_entry(name, anchors)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def _value(entry: str) -> Any:
    return attrgetter(entry)(segstore)


def _keys(name: str) -> list[str]:
    value = _value(name)
    return [f"{name}.{m.name}" for m in members(value) if m.has_entry] if inspect.isclass(value) else []


def _heading(entry: str) -> str:
    """`mirror` and `Mirror` would have the same anchor: a function is headed by `segstore.mirror`."""
    is_function = not any(map(inspect.isclass, (_value(entry.partition(".")[0]), _value(entry))))
    return f"segstore.{entry}" if is_function else entry


def _anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _entry(name: str, anchors: Mapping[str, str]) -> Iterator[str]:
    value = _value(name)
    if isinstance(value, enum.Enum):  # a constant
        yield from _text(type(value), anchors)
        return
    if value.__name__ != name.rpartition(".")[2]:
        yield f"Another name of [`{value.__name__}`](#{_anchor(_heading(value.__name__))})."
        return
    if name in RETURNED_BY:
        giver = RETURNED_BY[name]
        yield from (f"Returned by [`{giver}`](#{anchors[giver]}).", "")
    elif not isinstance(value, enum.EnumMeta):
        yield from _signature(value, f"segstore.{name}")
    yield from _text(value, anchors)
    if not inspect.isclass(value):
        return
    found = members(value)
    fields = [member.name for member in found if not member.has_entry]
    if fields:
        yield from ("", f"Attributes: {', '.join(f'`{field}`' for field in fields)}.")
    for member in found:
        if member.has_entry:
            yield from ("", f"#### {name}.{member.name}", "")
            yield from _method(value, member, anchors)


def _method(cls: type, member: Member, anchors: Mapping[str, str]) -> Iterator[str]:
    elsewhere = f"{member.owner.__name__}.{member.name}"
    if member.owner is not cls and elsewhere in anchors:
        yield f"As [`{elsewhere}`](#{anchors[elsewhere]})."
    elif member.is_property:
        function = getattr(member.value, "fget", None) or member.value.func
        returns = inspect.signature(function).return_annotation
        yield from ("```python", f"{member.name}: {_name(returns)}", "```", "")
        yield from _text(member.value, anchors)
    else:
        yield from _signature(getattr(cls, member.name), member.name, is_bound=_is_bound(member.value))
        yield from _text(member.value, anchors)


def _is_bound(value: Any) -> bool:
    return isinstance(value, (classmethod, staticmethod))


def _signature(value: Callable[..., Any], called: str, is_bound: bool = True) -> Iterator[str]:
    """The block that shows how it is called."""
    signature = inspect.signature(value)
    parameters = list(signature.parameters.values())[0 if is_bound else 1 :]
    parts = list(_parameters(parameters))
    returns = signature.return_annotation
    is_shown = returns not in (None, "None", inspect.Signature.empty) and not inspect.isclass(value)
    ending = f") -> {_name(returns)}" if is_shown else ")"
    awaited = "await " if inspect.iscoroutinefunction(value) else ""
    whole = f"{awaited}{called}({', '.join(parts)}{ending}"
    if len(whole) > WIDTH:
        whole = "\n".join([f"{awaited}{called}(", *(f"    {part}," for part in parts if part), ending])
    yield from ("```python", whole, "```", "")


def _parameters(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    is_keyword = False
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            is_keyword = True
        elif each.kind is each.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            yield "*"
        text = stars.get(each.kind, "") + each.name
        if each.annotation is not each.empty and each.kind is not each.VAR_KEYWORD:
            text += f": {_name(each.annotation)}"
        if each.default is not each.empty:
            default = repr(each.default)
            text += f" = {'...' if default.startswith('<') else default}"
        yield text


def _name(annotation: Any) -> str:
    annotation = getattr(annotation, "__forward_arg__", annotation)  # of a field of a NamedTuple
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _text(value: Any, anchors: Mapping[str, str]) -> Iterator[str]:
    """The docstring, with its own line ends, and links to the entries that it names."""
    doc = inspect.cleandoc(value.__doc__ or "")

    def linked(found: re.Match[str]) -> str:
        code = found[0]
        return f"[{code}](#{anchors[code[1:-1]]})" if code[1:-1] in anchors else code

    text = re.sub(r"`[^`]+`", linked, escaped(doc))
    yield from text.splitlines()


def escaped(text: str) -> str:
    """A text in which Markdown finds no tags and no emphasis, and its spans of code as they are."""
    pieces = re.split(r"(`[^`]+`)", text)
    for number in range(0, len(pieces), 2):
        no_tags = re.sub(r"<(?=[\w/!])", "&lt;", pieces[number])
        pieces[number] = re.sub(r"(\*|(?<!\w)_(?=\w)|(?<=\w)_(?!\w))", r"\\\1", no_tags)
    return "".join(pieces)
