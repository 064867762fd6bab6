"""`AuthenticationError`: a client has failed to authenticate."""

from __future__ import annotations


class AuthenticationError(Exception):
    """A failed authentication. The message is sent to the client, so it has no details (Kafka:
    SaslAuthenticationException).
    """
