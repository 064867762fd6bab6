"""`Sasl` and `SaslSession`: the SASL authentication of a connection, which may have a limited lifetime
(KIP-43, KIP-152, KIP-368; Kafka: SaslServerAuthenticator).

    HANDSHAKE -> TOKENS -> DONE -> TOKENS -> DONE       a reauthentication begins in DONE
    any -> FAILED

Threads: the loop's thread; `SaslSession.respond` is called in a worker thread, one call at a time.
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
"""The minimum time between two authentications of a connection, in seconds (Kafka:
KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS).
"""


class Mechanism(Protocol):
    """The server's side of one authentication. `name` is "" until the client has sent a user name, and
    `principal` is None until the authentication has succeeded.
    """

    principal: str | None
    name: str

    def respond(self, token: bytes) -> bytes:
        """Check the client's next message, and return the server's answer. Raises AuthenticationError."""


class Sasl:
    """The mechanisms, users and limits of a server's SASL sessions."""

    def __init__(self, config: SecurityConfig, users: Users, scram_users: ScramUsers) -> None:
        self.mechanisms = tuple(config.sasl_enabled_mechanisms.split(","))
        self.most_ms = config.connections_max_reauth_ms
        self.failed_delay = config.connection_failed_authentication_delay_ms / 1000
        self._users, self._scram_users = users, scram_users

    def knows(self, mechanism: str, name: str) -> bool:
        """Return whether there is a user of this name who may authenticate by this mechanism."""
        if mechanism not in self.mechanisms:
            return False
        return self._users.knows(name) or (mechanism != PLAIN and self._scram_users.knows(name, mechanism))

    def begin(self, mechanism: str) -> Mechanism:
        """Return the server's side of a new authentication. Raises AuthenticationError if the mechanism was
        disabled after the SASL handshake.
        """
        if mechanism not in self.mechanisms:
            raise AuthenticationError(f"{mechanism} is not served any more")
        if mechanism == PLAIN:
            return PlainExchange(self._users)
        return ScramExchange(mechanism, self._scram_users.finder(mechanism))

    def session(self, entered: Callable[[str], object]) -> SaslSession:
        """Return the session of a new connection. `entered(principal)` is called after each successful
        authentication.
        """
        return SaslSession(self, entered)


class SaslState(Enum):
    """The states of a client's authentication; the module's docstring shows the transitions."""

    HANDSHAKE = auto()
    TOKENS = auto()
    DONE = auto()
    FAILED = auto()


def _nobody(_principal: str) -> None:
    pass


class SaslSession:
    """The authentication of one connection. `entered(principal)` is called when an authentication or a
    reauthentication has succeeded.
    """

    def __init__(
        self,
        sasl: Sasl,
        entered: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sasl, self.state = sasl, SaslState.HANDSHAKE
        # the `Sasl` object that checks the current authentication
        self._judge = sasl
        self._entered, self._clock = entered, clock
        self._exchange: Mechanism | None = None
        self._mechanism = ""
        self._principal: str | None = None
        self._until = self._begun = 0.0  # times in monotonic seconds

    def check(self, api: Api) -> None:
        """Raise InvalidRequestError if a request of this API is not allowed now. The caller then closes the
        connection.
        """
        if self.state is SaslState.DONE:
            if self._until and self._clock() > self._until and api is not Api.SASL_HANDSHAKE:
                raise InvalidRequestError("its SASL session has expired")
            return
        allowed = _FIRST if self.state is SaslState.HANDSHAKE else frozenset({Api.SASL_AUTHENTICATE})
        if self.state is SaslState.FAILED or api not in allowed:
            raise InvalidRequestError(f"{api.message} came before its client had authenticated")

    def begin(self, mechanism: str) -> Code:
        """Begin an authentication or a reauthentication, and return Code.NONE. If the client must not
        reauthenticate now, change nothing and return ILLEGAL_SASL_STATE. If the mechanism is not allowed, end
        the session as failed and return UNSUPPORTED_SASL_MECHANISM.
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
        """Whether the client has failed to authenticate."""
        return self.state is SaslState.FAILED

    @property
    def mechanism(self) -> str:
        """The mechanism of the authentication that has begun last, "" before the first authentication."""
        return self._mechanism

    @property
    def name(self) -> str:
        """The client's user name in the current authentication, "" if unknown. The name may be unverified."""
        return "" if self._exchange is None else self._exchange.name

    def abandon(self) -> None:
        """Never call the constructor's `entered` again, because the connection is closed."""
        self._entered = _nobody

    def fail(self) -> None:
        """End the session as failed: no further request is allowed."""
        self.state, self._exchange = SaslState.FAILED, None

    def respond(self, token: bytes) -> bytes:
        """Check a token, and return the answer. Called in a worker thread; the loop's thread then calls
        `finish`. Raises AuthenticationError, and the errors of the application's function that checks
        passwords.
        """
        if self._exchange is None:
            # The exchange is made here and not in `begin`, because the users may change before the first
            # token.
            self._judge = self.sasl
            self._exchange = self._judge.begin(self._mechanism)
        return self._exchange.respond(token)

    def finish(self) -> int:
        """Apply the result of `respond`, and return the session's lifetime in ms. Return 0 if the lifetime
        has no limit, or if the client must send another token. Raises AuthenticationError if the user was
        removed, or if a reauthentication has another principal than the first authentication.
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
    """Make the `Sasl` of a server from its settings and the store's SCRAM credentials. Raises
    CorruptCheckpointError, and InvalidArgumentError or StorageError if the file of users can't be read.
    """
    users = users_of(config.sasl_users)
    return Sasl(config, users, ScramUsers(scram_credentials(store), users))
