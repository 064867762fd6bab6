"""The base of settings classes: from mappings of dotted names and back. Nothing on disk.

Threads: any; settings are immutable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from segstore.config.options import Option, OptionRow, Value, judge, unknown
from segstore.errors import ConfigError, InvalidTypeError

S = TypeVar("S", bound="Settings")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Immutable, hashable settings; attributes are the dotted names with underscores.

    However an instance is made, each value has been judged: ConfigError names the setting, the value
    and what is allowed. A setting that was given stays so, even where it was given the default.
    """

    explicit: frozenset[str] = field(default=frozenset(), repr=False)
    """Dotted names of the settings that were made; all others have their defaults."""

    def __post_init__(self) -> None:
        made = set(self.explicit)
        for attribute, (name, option) in _by_attribute(type(self)).items():
            given = getattr(self, attribute)
            if given is option.default:  # which a test has judged
                continue
            value = judge(name, option, given)
            object.__setattr__(self, attribute, value)
            if value != option.default:
                made.add(name)
        object.__setattr__(self, "explicit", frozenset(made))
        conflict = self.conflict()
        if conflict is not None:
            raise ConfigError(conflict)

    def conflict(self) -> str | None:
        """What is wrong with the settings together, or None."""
        return None

    @classmethod
    def parse(cls: type[S], mapping: Mapping[str, Value]) -> S:
        """Settings from Kafka's dotted names and str, int, float or bool values; the rest are defaults.

        ConfigError names setting, value and what is allowed; InvalidTypeError for what is no mapping.
        """
        _check_names(cls, mapping)
        values: dict[str, Any] = {_attribute(name): value for name, value in mapping.items()}
        return cls(explicit=frozenset(mapping), **values)

    def replace(self: S, mapping: Mapping[str, Value | None]) -> S:
        """These settings with some changed; None takes a setting back to its default. Errors as `parse`."""
        _check_names(type(self), mapping)
        merged = {**self.to_mapping(), **mapping}
        return self.parse({name: value for name, value in merged.items() if value is not None})

    def to_mapping(self) -> dict[str, Value]:
        """The settings that were made, by dotted name, in order of the reference; `parse` takes them back."""
        return {
            name: getattr(self, _attribute(name)) for name in options(type(self)) if name in self.explicit
        }

    @classmethod
    def describe(cls) -> Iterator[OptionRow]:
        """All settings for reference: name, type, default, what is allowed, unit, meaning."""
        for name, o in options(cls).items():
            yield OptionRow(name, o.kind, o.default, o.allowed, o.unit, o.doc)


_OPTIONS: dict[type, dict[str, Option]] = {}
_BY_ATTRIBUTE: dict[type, dict[str, tuple[str, Option]]] = {}


def options(cls: type[Settings]) -> dict[str, Option]:
    """The options of a settings class by dotted name."""
    if cls not in _OPTIONS:
        _OPTIONS[cls] = dict(_by_attribute(cls).values())
    return _OPTIONS[cls]


def _by_attribute(cls: type[Settings]) -> dict[str, tuple[str, Option]]:
    if cls not in _BY_ATTRIBUTE:
        made = [f for f in fields(cls) if "option" in f.metadata]
        _BY_ATTRIBUTE[cls] = {f.name: (f.name.replace("_", "."), f.metadata["option"]) for f in made}
    return _BY_ATTRIBUTE[cls]


def _attribute(name: str) -> str:
    return name.replace(".", "_")


def _check_names(cls: type[Settings], mapping: object) -> None:
    if not isinstance(mapping, Mapping):
        raise InvalidTypeError(f"settings must be a mapping of names to values, not {type(mapping).__name__}")
    known = options(cls)
    for name in mapping:
        if not isinstance(name, str) or name not in known:
            raise unknown(name, known)
