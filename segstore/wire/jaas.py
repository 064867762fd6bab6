"""Reads user and password from a value of `sasl.jaas.config`, a setting of Kafka's Java clients (Kafka:
PlainLoginModule, ScramLoginModule). Threads: any.
"""

from __future__ import annotations

import re

from segstore.errors import ConfigError

JAAS = "sasl.jaas.config"
_MODULE = re.compile(r"\S+\.(?:Plain|Scram)LoginModule\s")
_PART = re.compile(r'(username|password)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


def login_of(value: str, where: str) -> tuple[str, str]:
    """Return user and password from a login module's options. Raises ConfigError; its text names `where`, the
    origin of the value.
    """
    given = {name: _ESCAPE.sub(r"\1", held) for name, held in _PART.findall(value)}
    if not _MODULE.match(value) or len(given) != 2:
        raise ConfigError(
            f"{where}: of {JAAS} only PlainLoginModule and ScramLoginModule with username and password"
            " are known: give librdkafka's sasl.* settings"
        )
    return given["username"], given["password"]
