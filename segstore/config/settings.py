"""The base of settings classes: it checks, parses and refuses settings. Nothing on disk.

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
    """Immutable settings. The constructor checks each value. It raises ConfigError, whose text has the
    setting, the value and the allowed values.
    """

    REFUSED: ClassVar[Mapping[str, str]] = {}
    """{setting that other programs have, and this class refuses: the reason}."""

    def __post_init__(self) -> None:
        self._judge()
        conflict = self.conflict()
        if conflict is not None:
            raise ConfigError(conflict)

    def _judge(self) -> list[str]:
        """Check and convert every value. Return the names of the settings whose value was another object than
        the default.
        """
        changed = []
        for name, (attribute, option) in _table(type(self)).items():
            value = getattr(self, attribute)
            # A default is not checked here: a unit test checks all defaults.
            if value is option.default:
                continue
            object.__setattr__(self, attribute, judge(name, option, value))
            changed.append(name)
        return changed

    def conflict(self) -> str | None:
        """Return an error message if two settings contradict each other, else None."""
        return None

    @classmethod
    def name_of(cls, attribute: str) -> str:
        """Return the name of the setting that this attribute has."""
        return attribute

    @classmethod
    def parse(cls: type[S], mapping: Mapping[str, Any]) -> S:
        """Return the settings that `mapping`, {name: value}, describes. Missing settings get their defaults.

        Raises InvalidTypeError if `mapping` is no mapping. Raises ConfigError for an invalid value, and for a
        refused or unknown setting.
        """
        return cls(**cls._values(mapping))

    @classmethod
    def _values(cls, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """Return {attribute: value} for a mapping {name: value}. Raises ConfigError, InvalidTypeError."""
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
        """Yield, for each setting, a row of the reference of settings: name, type, default, allowed values,
        unit, meaning.
        """
        for name, o in options(cls).items():
            yield OptionRow(name, type(o.default).__name__, o.default, o.allowed, o.unit, o.doc)


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(Settings):
    """Hashable settings with Kafka's dotted names. The attributes' names have underscores in place of dots. A
    setting in the mapping that `parse` got counts as explicit, even if its value is the default.
    """

    explicit: frozenset[str] = field(default=frozenset(), repr=False)
    """The dotted names of the settings that were set explicitly. All other settings have their defaults."""

    def _judge(self) -> list[str]:
        changed, table = super()._judge(), _table(type(self))
        values = {name: (getattr(self, table[name][0]), table[name][1].default) for name in changed}
        made = {name for name, (value, default) in values.items() if value != default}
        object.__setattr__(self, "explicit", frozenset(made.union(self.explicit)))
        return changed

    @classmethod
    def name_of(cls, attribute: str) -> str:
        return attribute.replace("_", ".")

    @classmethod
    def parse(cls: type[K], mapping: Mapping[str, Value]) -> K:
        """Return the settings that `mapping`, {Kafka's dotted name: str, int, float or bool}, describes.
        Missing settings get their defaults.

        Raises InvalidTypeError if `mapping` is no mapping. Raises ConfigError for an invalid value, and for a
        refused or unknown setting.
        """
        values = cls._values(mapping)
        # All topics without settings of their own share one object.
        if not values:
            defaults: K = _DEFAULTS.get(cls) or _DEFAULTS.setdefault(cls, cls())
            return defaults
        return cls(explicit=frozenset(mapping), **values)

    def replace(self: K, mapping: Mapping[str, Value | None]) -> K:
        """Return a copy of these settings with the changes in `mapping`. The value None resets a setting to
        its default. Raises ConfigError, InvalidTypeError.
        """
        self._values(mapping)
        merged = {**self.to_mapping(), **mapping}
        return self.parse({name: value for name, value in merged.items() if value is not None})

    def to_mapping(self) -> dict[str, Value]:
        """Return {dotted name: value} of the explicit settings, in the order in which they are declared.
        `parse` accepts the mapping.
        """
        table = _table(type(self)).items()
        return {name: getattr(self, attribute) for name, (attribute, _) in table if name in self.explicit}


# --- table -------------------------------------------------------------------------------------

_DEFAULTS: dict[type, Any] = {}
"""{settings class: the instance in which every setting has its default}."""
_TABLES: dict[type, dict[str, tuple[str, Option]]] = {}
"""{settings class: {name of a setting: (attribute, option)}}, in the order in which the settings are
declared.
"""


def _table(cls: type[Settings]) -> dict[str, tuple[str, Option]]:
    if cls not in _TABLES:
        made = [f for f in fields(cls) if "option" in f.metadata]
        _TABLES[cls] = {cls.name_of(f.name): (f.name, f.metadata["option"]) for f in made}
    return _TABLES[cls]


def options(cls: type[Settings]) -> dict[str, Option]:
    """Return {name of a setting: its option} of a settings class."""
    return {name: option for name, (_, option) in _table(cls).items()}


def _refuse(refused: Mapping[str, str]) -> None:
    """If there are refused settings, raise a ConfigError that names them, with the reasons."""
    if refused:
        by_reason = {reason: [n for n, r in refused.items() if r == reason] for reason in refused.values()}
        messages = (
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} refused: {reason}"
            for reason, names in by_reason.items()
        )
        raise ConfigError("; ".join(messages))
