"""Settings as the wire protocol has them: each with its value as text, its type and its source (Kafka:
DescribeConfigsResponse, ConfigSource, ConfigType). Threads: any; the functions have no state.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple

from segstore.config import GroupConfig, TopicConfig
from segstore.config.broker_names import BROKER_NAMES
from segstore.config.options import MAX_INT, Option
from segstore.config.settings import KafkaSettings, Settings, options
from segstore.storage.store.reader import StoreReader
from segstore.storage.store.store import Store


class ConfigSource(IntEnum):
    """The source of a setting's value (Kafka: DescribeConfigsResponse.ConfigSource)."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


class Type(IntEnum):
    """The type of a setting's value (Kafka: DescribeConfigsResponse.ConfigType)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class Synonym(NamedTuple):
    """The value of a setting at one source, and the setting's name there."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One setting of a resource. If the resource is a topic or a group, `broker_entry` is the broker's
    setting whose value it inherits.
    """

    name: str
    value: str | None
    default: str | None
    source: ConfigSource
    type: Type
    documentation: str
    is_sensitive: bool = False
    broker_entry: ConfigEntry | None = None

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG

    @property
    def synonyms(self) -> list[Synonym]:
        """Return the setting's values at all sources, the effective value first. If the default is null, the
        default is not among them.
        """
        own = Synonym(self.name, self.value, self.source)
        if self.broker_entry is not None:
            return [own] * (self.source in MADE_FOR_ONE) + self.broker_entry.synonyms
        default = Synonym(self.name, self.default, ConfigSource.DEFAULT_CONFIG)
        return [own] * (not self.is_default) + [default] * (self.default is not None)


MADE_FOR_ONE = frozenset({ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_GROUP_CONFIG})
"""The sources of values that were set for one topic or one group."""


LISTS = frozenset({"cleanup.policy"})
"""The settings whose values are lists. IncrementalAlterConfigs can append to them."""
OF_ALL_BROKERS = frozenset({"min.insync.replicas"})
"""The settings that can't be set for a single broker, only for all brokers together, because the eligible
leader replicas depend on these settings (KIP-966,
ConfigurationControlManager.maybeGenerateElrSafetyRecords).
"""


def text(value: object) -> str | None:
    """Return a setting's value as the text that Kafka would write; None if `value` is None."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    # The parser of a setting that is a tuple accepts a line for each item.
    if isinstance(value, tuple):
        return "\n".join(map(str, value))
    return _java_double(value) if isinstance(value, float) else str(value)


def _java_double(value: float) -> str:
    """Return a number as java.lang.Double.toString would write it."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, _, exponent = f"{Decimal(repr(value)).normalize():E}".partition("E")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


def settings_of(store: Store) -> KafkaSettings | None:
    """Return the settings of a store; None if the store is open only for reading."""
    side = store.engine
    return None if isinstance(side, StoreReader) else side.config


def of_topic(config: TopicConfig, store: KafkaSettings | None) -> Iterator[ConfigEntry]:
    """Yield all settings of a topic. A setting that was not set for the topic has the store's value."""
    of_its_store = {} if store is None else {entry.name: entry for entry in of_store(store)}
    for entry in _entries(config, config.explicit, ConfigSource.DYNAMIC_TOPIC_CONFIG):
        name = BROKER_NAMES.get(entry.name, entry.name)
        yield _before(entry, name, of_its_store.get(entry.name))


def of_group(made: GroupConfig, store: KafkaSettings | None) -> Iterator[ConfigEntry]:
    """Yield all settings of a group. A setting that was not set for the group has the store's value. The name
    in `broker_entry` is the store's name for the setting; if the store has no such setting, or if `store` is
    None, it is the group's name for it.
    """
    of_its_store = {} if store is None else {entry.name: entry for entry in of_store(store)}
    for entry in _entries(made, made.explicit, ConfigSource.DYNAMIC_GROUP_CONFIG):
        of_its = of_its_store.get(f"group.{entry.name}")
        yield _before(entry, entry.name if of_its is None else of_its.name, of_its)


def _before(entry: ConfigEntry, name: str | None, of_broker: ConfigEntry | None) -> ConfigEntry:
    """Return a topic's or group's setting with the broker's setting as `broker_entry`. A setting that was not
    set gets the broker's value. `name` is the broker's name for it; None if brokers do not have it.
    """
    default = _source(entry.name, ConfigSource.DEFAULT_CONFIG)
    broker_entry = of_broker or entry._replace(value=entry.default, source=default)
    if entry.source not in MADE_FOR_ONE:
        entry = entry._replace(value=broker_entry.value, source=broker_entry.source)
    if name is None:
        return entry._replace(
            broker_entry=broker_entry._replace(source=ConfigSource.DEFAULT_CONFIG, default=None)
        )
    return entry._replace(broker_entry=broker_entry._replace(name=name))


def of_store(config: KafkaSettings) -> Iterator[ConfigEntry]:
    """Yield all settings of a store."""
    return _entries(config, config.explicit, ConfigSource.STATIC_BROKER_CONFIG)


def of_all_brokers(config: KafkaSettings) -> Iterator[ConfigEntry]:
    """Yield the store's settings that hold for all brokers together. Their defaults are omitted, because
    Kafka shows defaults only among the settings of a single broker.
    """
    return (entry._replace(default=None) for entry in of_store(config) if entry.name in OF_ALL_BROKERS)


def of_server(config: Settings) -> Iterator[ConfigEntry]:
    """Yield all settings of a server, with dotted names, as a broker's settings have. A setting whose value
    equals its default counts as not set.
    """
    made = {name for name, o in options(type(config)).items() if _held(config, name) != o.default}
    return _entries(config, made, ConfigSource.STATIC_BROKER_CONFIG)


def of_listeners(protocol: str, host: str, port: int) -> ConfigEntry:
    """Return the setting advertised.listeners: the protocol and the address that clients connect to."""
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return ConfigEntry(
        "advertised.listeners",
        f"{protocol}://{at}",
        None,
        ConfigSource.STATIC_BROKER_CONFIG,
        Type.STRING,
        "the address that clients are told to connect to",
    )


def _held(config: Settings, name: str) -> Any:
    return getattr(config, name.replace(".", "_"))


def _entries(config: Settings, made: Any, source: ConfigSource) -> Iterator[ConfigEntry]:
    for name, option in options(type(config)).items():
        dotted = name.replace("_", ".")
        yield ConfigEntry(
            dotted,
            None if option.secret else text(_held(config, name)),
            text(option.default),
            _source(dotted, source if name in made else ConfigSource.DEFAULT_CONFIG),
            Type.PASSWORD if option.secret else _type(dotted, option),
            _documentation(option),
            option.secret,
        )


def _source(name: str, source: ConfigSource) -> ConfigSource:
    of_all = name in OF_ALL_BROKERS and source is not ConfigSource.DYNAMIC_TOPIC_CONFIG
    return ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG if of_all else source


def _type(name: str, option: Option) -> Type:
    default = option.default
    if isinstance(default, bool):
        return Type.BOOLEAN
    if isinstance(default, int):
        return Type.LONG if str(MAX_INT) not in option.allowed else Type.INT
    if isinstance(default, float):
        return Type.DOUBLE
    return Type.LIST if name in LISTS else Type.STRING


def _documentation(option: Option) -> str:
    unit = f" ({option.unit})" if option.unit else ""
    return f"{option.doc}{unit}; {option.allowed}"
