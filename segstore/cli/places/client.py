"""`ClusterClients`: makes librdkafka's clients of a cluster, and converts errors of librdkafka to errors of
segstore.

Nothing is on disk. Threads: one. librdkafka has its own threads.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future
from types import ModuleType
from typing import Any

from segstore.errors import ConfigError, Needing, SegstoreError

LONGEST = 15.0
"""The longest time in seconds that a command waits for an answer of a cluster."""
_STEP = 0.5
"""The longest time in seconds of one call of librdkafka. Python can handle signals only between two calls."""
_DEFAULTS = {
    "client.id": "segstore",
    "socket.connection.setup.timeout.ms": 10_000,
}
_WHOSE = re.compile(r"^\S+/(?:bootstrap|\d+): | ?\(after \d+ms in state \w+.*\)$")
"""Text that librdkafka adds to an error's message: the connection before it, and the connection's state after
it.
"""
_NO_WORD = (
    "it ends connections without a word: does it speak TLS or SASL? Give --set security.protocol=SSL (or"
    " SASL_SSL, SASL_PLAINTEXT), or --command-config FILE"
)
_SILENT = logging.getLogger("segstore.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class ClusterError(SegstoreError):
    """Raised if a cluster can't be reached, or has refused a request. The message begins with the cluster's
    address.
    """


class ClusterClients:
    """The clients of one cluster. `trouble` is the latest error of a connection as text, "" if there was none
    since the last call of `calm`.
    """

    def __init__(self, bootstrap: str, settings: Mapping[str, str]) -> None:
        """Make the administrative client. Raises MissingPackageError, ConfigError."""
        self.bootstrap, self.trouble = bootstrap, ""
        self._settings = {**_DEFAULTS, **settings, "bootstrap.servers": bootstrap}
        self._is_down = False
        with Needing("confluent-kafka", "--bootstrap"):
            import confluent_kafka
            import confluent_kafka.admin
        self.kafka: ModuleType = confluent_kafka
        self.admin = self.made(confluent_kafka.admin.AdminClient)

    def made(self, kind: Any, logger: logging.Logger = _SILENT, **settings: Any) -> Any:
        """Return a client of type `kind` that logs to `logger`. Settings that the user has given override
        `settings`. Raises ConfigError.
        """
        own = {name.replace("_", "."): value for name, value in settings.items()}
        held = {**own, **self._settings, "error_cb": self._heard}
        try:
            return kind(held, logger=logger)
        except self.kafka.KafkaException as error:
            raise ConfigError(f"a setting of the client: {self.reason(error)}") from None

    def _heard(self, error: Any) -> None:
        if error.code() == self.kafka.KafkaError._ALL_BROKERS_DOWN:
            self._is_down = True
        else:
            self.trouble = _WHOSE.sub("", error.str())

    def calm(self) -> str:
        """Set `trouble` to "", and return its value before that."""
        trouble, self.trouble = self.trouble, ""
        return trouble

    # --- answers --------------------------------------------------------------------------

    def metadata(self) -> Any:
        """Return the cluster's metadata. If the cluster can't be reached, raises ClusterError. Its message
        has the reason.
        """
        end = time.monotonic() + LONGEST
        while True:
            try:
                return self.admin.list_topics(timeout=_STEP)
            except self.kafka.KafkaException as error:
                self.admin.poll(0)
                if self._is_down or time.monotonic() > end or not self._may_pass(error):
                    raise self.error("can't be reached", self.trouble or self._unsaid(error)) from None

    def _unsaid(self, error: Any) -> Any:
        """If the client has neither TLS nor SASL and `error` is a transport error, return an explanation: a
        listener that requires TLS or SASL closes the connection. In all other cases return `error`.
        """
        plain = str(self._settings.get("security.protocol", "plaintext")).lower() == "plaintext"
        return _NO_WORD if plain and error.args[0].code() == self.kafka.KafkaError._TRANSPORT else error

    def _may_pass(self, error: Any) -> bool:
        kinds = self.kafka.KafkaError
        return error.args[0].code() in (kinds._TRANSPORT, kinds._TIMED_OUT, kinds._ALL_BROKERS_DOWN)

    def result(self, future: Future[Any], what: str = "") -> Any:
        """Return the result of an administrative call. Raises ClusterError. Its message includes `what`."""
        try:
            return future.result()
        except self.kafka.KafkaException as error:
            raise self.error(*filter(None, (what, error))) from None

    def error(self, *parts: Any) -> ClusterError:
        """Return a ClusterError. Its message has the cluster's address, and then `parts`, which are texts and
        errors of librdkafka.
        """
        return ClusterError(": ".join((self.bootstrap, *map(self.reason, parts))))

    def reason(self, error: Any) -> str:
        """Return the message of an error, without "Broker:" and "Local:" at its beginning. `error` may be a
        text, too.
        """
        held = error.args[0] if isinstance(error, self.kafka.KafkaException) else error
        text = held.str() if isinstance(held, self.kafka.KafkaError) else str(held)
        return str(text).removeprefix("Broker: ").removeprefix("Local: ")
