"""`StoreClientSettings`: the common base of the settings of producers and consumers. Nothing on disk.

Threads: any; settings are immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from segstore.config import client
from segstore.config.options import unknown
from segstore.config.settings import options
from segstore.logger import Logger

S = TypeVar("S", bound="StoreClientSettings")

log = Logger("segstore")


@dataclass(frozen=True, kw_only=True)
class StoreClientSettings(client.ClientSettings):
    """The settings of a client of a store, with kafka-python's names."""

    IGNORED: ClassVar[Mapping[str, str]] = client.IGNORED
    """{setting that is accepted and has no effect: the reason}."""

    @classmethod
    def parse(cls: type[S], mapping: Mapping[str, Any]) -> S:
        """Return the settings that `mapping`, {name: value}, describes. Missing settings get their defaults.
        The settings in `IGNORED` are ignored, and one warning names them. Raises the errors of the base
        class's `parse`.
        """
        given = mapping.items() if isinstance(mapping, dict | Mapping) else ()
        ignored = sorted(name for name, value in given if cls._is_ignored(name, value))
        if not ignored:
            return super().parse(mapping)
        made = super().parse({name: value for name, value in mapping.items() if name not in ignored})
        log.warning("settings without an effect on a store: %s", ", ".join(ignored))
        return made

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return {name: default} of the settings that have an effect (kafka-python: DEFAULT_CONFIG)."""
        return {name: option.default for name, option in options(cls).items()}

    def __getitem__(self, name: str) -> Any:
        """Return a setting's value (kafka-python: config[name]). Raises ConfigError for an unknown name."""
        known = options(type(self))
        if name not in known:
            raise unknown(name, known)
        return getattr(self, name)

    @classmethod
    def _is_ignored(cls, name: str, value: object) -> bool:
        return name in cls.IGNORED or (name == "security_protocol" and value == "PLAINTEXT")
