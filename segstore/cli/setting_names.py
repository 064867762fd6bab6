"""Converts the names of a server's settings in messages: a name gets dots, as in Kafka, and may be followed
by the command-line option. Nothing is on disk. Threads: any.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from segstore.errors import ConfigError, InvalidArgumentError

_NAME = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")
_OPTIONS = {
    "ssl_keystore_location": "--tls-keystore",
    "ssl_truststore_location": "--tls-truststore",
    "sasl_users": "--sasl-users",
    "super_users": "--super-users",
}


def dotted(text: str, given: Iterable[str], *, with_options: bool = False) -> str:
    """Return the message `text`, with dots in place of underscores in the names of settings of stores and
    servers, and in the names `given`. If `with_options`, add the command-line option of a setting, if it has
    one.
    """
    from segstore.config import StoreConfig
    from segstore.server.settings import ServerConfig

    of_store = (row.name.replace(".", "_") for row in StoreConfig.describe())
    known = {*given, *(row.name for row in ServerConfig.describe()), *of_store}

    def named(match: re.Match[str]) -> str:
        if match[0] not in known:
            return match[0]
        option = _OPTIONS.get(match[0]) if with_options else None
        return match[0].replace("_", ".") + (f" ({option})" if option else "")

    return _NAME.sub(named, text)


@contextmanager
def names_of_the_command(given: Iterable[str]) -> Iterator[None]:
    """A context manager. If its `with` block raises ConfigError or InvalidArgumentError, raise the error with
    another message: names of settings have dots, and their command-line options are added.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(dotted(str(error), given, with_options=True)) from None
    except InvalidArgumentError as error:
        raise InvalidArgumentError(dotted(str(error), given, with_options=True)) from None
