"""The base of settings classes: how settings are declared, judged, parsed and refused. Nothing on disk.

A settings class is a frozen dataclass whose fields are made by the functions of `segstore.config.options` and
`segstore.config.client`. Threads: any; settings are immutable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from segstore.config.options import Option, OptionRow, Value, judge, unknown
from segstore.errors import ConfigError, InvalidTypeError

S = TypeVar("S", bound="Settings")
K = TypeVar("K", bound="KafkaSettings")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Immutable settings. However an instance is made, each value has been judged: ConfigError names the
    setting, the value and what is allowed.
    """

    REFUSED: ClassVar[Mapping[str, str]] = {}
    """Settings that are known elsewhere and make no sense here, and the reason."""

    def __post_init__(self) -> None:
        self._judge()
        conflict = self.conflict()
        if conflict is not None:
            raise ConfigError(conflict)

    def _judge(self) -> list[str]:
        """Put every value in the form in which it is used; return the names of those that were given."""
        given_names = []
        for name, (attribute, option) in _table(type(self)).items():
            given = getattr(self, attribute)
            if given is option.default:  # which a test has judged
                continue
            object.__setattr__(self, attribute, judge(name, option, given))
            given_names.append(name)
        return given_names

    def conflict(self) -> str | None:
        """Return a message if the settings contradict each other, else None."""
        return None

    @classmethod
    def name_of(cls, attribute: str) -> str:
        """Return the name of the setting that an attribute holds."""
        return attribute

    @classmethod
    def parse(cls: type[S], mapping: Mapping[str, Any]) -> S:
        """Return settings from a mapping by name; the rest are defaults.

        ConfigError names setting, value and what is allowed, and settings that are refused or unknown;
        InvalidTypeError for what is no mapping.
        """
        return cls(**cls._values(mapping))

    @classmethod
    def _values(cls, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """Return by attribute what a mapping has by name. Raises ConfigError, InvalidTypeError."""
        if not isinstance(mapping, dict | Mapping):
            raise InvalidTypeError(
                f"settings must be a mapping of names to values, not {type(mapping).__name__}"
            )
        _refuse({name: cls.REFUSED[name] for name in mapping if name in cls.REFUSED})
        known = _table(cls)
        for name in mapping:
            if not isinstance(name, str) or name not in known:
                raise unknown(name, known)
        return {known[name][0]: value for name, value in mapping.items()}

    @classmethod
    def describe(cls) -> Iterator[OptionRow]:
        """Yield a row for each setting, for a reference: name, type, default, what is allowed, unit,
        meaning.
        """
        for name, o in options(cls).items():
            yield OptionRow(name, type(o.default).__name__, o.default, o.allowed, o.unit, o.doc)


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(Settings):
    """Settings by Kafka's dotted names, hashable; attributes are the names with underscores. A setting that
    was given counts as given, even if its value is the default.
    """

    explicit: frozenset[str] = field(default=frozenset(), repr=False)
    """Dotted names of the settings that were made; all others have their defaults."""

    def _judge(self) -> list[str]:
        given, table = super()._judge(), _table(type(self))
        values = {name: (getattr(self, table[name][0]), table[name][1].default) for name in given}
        made = {name for name, (value, default) in values.items() if value != default}
        object.__setattr__(self, "explicit", frozenset(made.union(self.explicit)))
        return given

    @classmethod
    def name_of(cls, attribute: str) -> str:
        return attribute.replace("_", ".")

    @classmethod
    def parse(cls: type[K], mapping: Mapping[str, Value]) -> K:
        """Return settings from Kafka's dotted names and str, int, float or bool values; the rest are
        defaults.

        ConfigError names setting, value and what is allowed; InvalidTypeError for what is no mapping.
        """
        values = cls._values(mapping)
        if not values:  # those of most topics, of which a store may have thousands
            found: K = _DEFAULTS.get(cls) or _DEFAULTS.setdefault(cls, cls())
            return found
        return cls(explicit=frozenset(mapping), **values)

    def replace(self: K, mapping: Mapping[str, Value | None]) -> K:
        """Return these settings with some changed; None takes a setting back to its default. Errors as
        `parse`.
        """
        self._values(mapping)
        merged = {**self.to_mapping(), **mapping}
        return self.parse({name: value for name, value in merged.items() if value is not None})

    def to_mapping(self) -> dict[str, Value]:
        """Return the settings that were made, by dotted name, in order of the reference; `parse` takes them
        back.
        """
        table = _table(type(self)).items()
        return {name: getattr(self, attribute) for name, (attribute, _) in table if name in self.explicit}


# --- table -------------------------------------------------------------------------------------

_DEFAULTS: dict[type, Any] = {}
"""For each class of KafkaSettings that was used: the settings of which none was made."""
_TABLES: dict[type, dict[str, tuple[str, Option]]] = {}
"""For each settings class that was used: by name, the attribute and the option of each setting, in order."""


def _table(cls: type[Settings]) -> dict[str, tuple[str, Option]]:
    if cls not in _TABLES:
        made = [f for f in fields(cls) if "option" in f.metadata]
        _TABLES[cls] = {cls.name_of(f.name): (f.name, f.metadata["option"]) for f in made}
    return _TABLES[cls]


def options(cls: type[Settings]) -> dict[str, Option]:
    """Return the options of a settings class by the names of settings."""
    return {name: option for name, (_, option) in _table(cls).items()}


def _refuse(found: Mapping[str, str]) -> None:
    """Raise a ConfigError that names all of these settings, each with the reason."""
    if found:
        by_reason = {reason: [n for n, r in found.items() if r == reason] for reason in found.values()}
        told = (
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} refused: {reason}"
            for reason, names in by_reason.items()
        )
        raise ConfigError("; ".join(told))
