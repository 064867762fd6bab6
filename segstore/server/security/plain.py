"""SASL/PLAIN: the client sends user name and password in one message (RFC 4616; Kafka: PlainSaslServer).
Threads: no shared state.
"""

from __future__ import annotations

from .failure import AuthenticationError
from .users import Users


class PlainExchange:
    """The server's side of a PLAIN authentication. `name` is the client's user name; `principal` is None
    until the password is verified.
    """

    def __init__(self, users: Users) -> None:
        self._users = users
        self.principal: str | None = None
        self.name = ""

    def respond(self, token: bytes) -> bytes:
        """Check the message `[authorization id] NUL name NUL password`, and return the empty answer. Raises
        AuthenticationError.
        """
        try:
            parts = token.decode("utf-8").split("\0")
        except UnicodeDecodeError:
            parts = []
        if len(parts) != 3 or self.principal is not None:
            raise AuthenticationError("Invalid SASL/PLAIN response: expected 3 tokens")
        authorization_id, name, password = parts
        self.name = name
        if not name or not password:
            missing = "password" if name else "username"
            raise AuthenticationError(f"Authentication failed: {missing} not specified")
        if not self._users.may_enter(name, password):
            raise AuthenticationError("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != name:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.principal = name
        return b""
