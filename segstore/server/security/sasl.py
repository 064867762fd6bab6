"""`Sasl` and `SaslSession`: how a connection's client authenticates, and for how long that holds (KIP-43,
KIP-152, KIP-368; Kafka: SaslServerAuthenticator).

    HANDSHAKE -> TOKENS -> DONE -> TOKENS -> DONE       a client that authenticates anew goes from DONE on
    any -> FAILED

Threads: the loop's; `SaslSession.respond` is called in a worker, one call at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from segstore.coordinator.credentials import scram_credentials
from segstore.errors import InvalidRequestError
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.storage.store.store import Store

from .failure import AuthenticationError
from .plain import PlainExchange
from .scram import ScramExchange
from .scram_users import ScramUsers
from .settings import PLAIN, SecurityConfig
from .users import Users, users_of

_FIRST = frozenset({Api.API_VERSIONS, Api.SASL_HANDSHAKE})
_LEAST_BETWEEN = 1.0
"""Seconds between two re-authentications (Kafka: KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS)."""


class Mechanism(Protocol):
    """The server's side of one exchange; `principal` is set at its end, `name` by the client's
    first message that has one.
    """

    principal: str | None
    name: str

    def respond(self, token: bytes) -> bytes:
        """Return the answer to the client's next message. Raises AuthenticationError."""


class Sasl:
    """What all sessions of a server share."""

    def __init__(self, config: SecurityConfig, users: Users, scram_users: ScramUsers) -> None:
        self.mechanisms = tuple(config.sasl_enabled_mechanisms.split(","))
        self.most_ms = config.connections_max_reauth_ms
        self.failed_delay = config.connection_failed_authentication_delay_ms / 1000
        self._users, self._scram_users = users, scram_users

    def knows(self, mechanism: str, name: str) -> bool:
        """Return whether there is a user of that name, who may authenticate by the mechanism."""
        if mechanism not in self.mechanisms:
            return False
        return self._users.knows(name) or (mechanism != PLAIN and self._scram_users.knows(name, mechanism))

    def begin(self, mechanism: str) -> Mechanism:
        """Return the server's side of a new exchange. Raises AuthenticationError for a mechanism that is not
        served any more.
        """
        if mechanism not in self.mechanisms:
            raise AuthenticationError(f"{mechanism} is not served any more")
        if mechanism == PLAIN:
            return PlainExchange(self._users)
        return ScramExchange(mechanism, self._scram_users.finder(mechanism))

    def session(self, entered: Callable[[str], object]) -> SaslSession:
        """Return the session of a new connection."""
        return SaslSession(self, entered)


class SaslState(Enum):
    """How far a client has come."""

    HANDSHAKE = auto()
    TOKENS = auto()
    DONE = auto()
    FAILED = auto()


def _nobody(_principal: str) -> None:
    pass


class SaslSession:
    """One connection's. `entered(principal)` is called when the client has authenticated."""

    def __init__(
        self,
        sasl: Sasl,
        entered: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sasl, self.state = sasl, SaslState.HANDSHAKE
        self._judge = sasl  # of the exchange
        self._entered, self._clock = entered, clock
        self._exchange: Mechanism | None = None
        self._mechanism = ""
        self._principal: str | None = None
        self._until = self._begun = 0.0  # monotonic seconds

    def check(self, api: Api) -> None:
        """Raise InvalidRequestError, which ends the connection, for a request that may not come now."""
        if self.state is SaslState.DONE:
            if self._until and self._clock() > self._until and api is not Api.SASL_HANDSHAKE:
                raise InvalidRequestError("its SASL session has expired")
            return
        allowed = _FIRST if self.state is SaslState.HANDSHAKE else frozenset({Api.SASL_AUTHENTICATE})
        if self.state is SaslState.FAILED or api not in allowed:
            raise InvalidRequestError(f"{api.message} came before its client had authenticated")

    def begin(self, mechanism: str) -> Code:
        """Begin an exchange, which a client that has authenticated may do anew. Returns an error code:
        ILLEGAL_SASL_STATE leaves the session as it is, others end it.
        """
        now = self._clock()
        again = self.state is SaslState.DONE
        if again and (not self.sasl.most_ms or now - self._begun < _LEAST_BETWEEN):
            return Code.ILLEGAL_SASL_STATE
        if mechanism not in self.sasl.mechanisms or (again and mechanism != self._mechanism):
            self.fail()
            return Code.UNSUPPORTED_SASL_MECHANISM
        self._mechanism, self._exchange, self._begun = mechanism, None, now
        self.state = SaslState.TOKENS
        return Code.NONE

    @property
    def has_failed(self) -> bool:
        """Return whether the client could not authenticate."""
        return self.state is SaslState.FAILED

    @property
    def mechanism(self) -> str:
        """Return the mechanism of the last exchange that has begun; "" before the first one."""
        return self._mechanism

    @property
    def name(self) -> str:
        """Return the name that the client has given in the exchange under way, which nothing may have proved;
        "" for none.
        """
        return "" if self._exchange is None else self._exchange.name

    def abandon(self) -> None:
        """Tell nobody of the client any more: its connection is closed."""
        self._entered = _nobody

    def fail(self) -> None:
        """Let nothing more come."""
        self.state, self._exchange = SaslState.FAILED, None

    def respond(self, token: bytes) -> bytes:
        """Return the answer to a token; `finish` has to be called after it. Raises AuthenticationError; any
        other error is a user callable's.
        """
        if self._exchange is None:  # not before: the users may have changed since the handshake
            self._judge = self.sasl
            self._exchange = self._judge.begin(self._mechanism)
        return self._exchange.respond(token)

    def finish(self) -> int:
        """Take note of what `respond` has found out; returns the session's lifetime in ms, 0 for ever and
        before the end of the exchange. Raises AuthenticationError for another principal than before.
        """
        assert self._exchange is not None
        principal = self._exchange.principal
        if principal is None:
            return 0
        if self._judge is not self.sasl and not self.sasl.knows(self._mechanism, principal):
            raise AuthenticationError("Authentication failed: the user was removed meanwhile")
        if self._principal not in (None, principal):
            raise AuthenticationError("Cannot change principals during re-authentication")
        self._principal, self.state, self._exchange = principal, SaslState.DONE, None
        self._until = self._clock() + self.sasl.most_ms / 1000 if self.sasl.most_ms else 0.0
        self._entered(principal)
        return self.sasl.most_ms


def sasl_of(store: Store, config: SecurityConfig) -> Sasl:
    """Return what the sessions of a server share, if its clients authenticate by SASL. Raises
    InvalidArgumentError, StorageError for a file of users that can't be read; CorruptCheckpointError.
    """
    users = users_of(config.sasl_users)
    return Sasl(config, users, ScramUsers(scram_credentials(store), users))
