"""`AuthenticationError`: a client is not who it says it is."""

from __future__ import annotations


class AuthenticationError(Exception):
    """The message is for the client, and tells it no more than that it failed (Kafka:
    SaslAuthenticationException).
    """
