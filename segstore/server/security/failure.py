"""`AuthenticationError`: raised if a client has failed to authenticate itself."""

from __future__ import annotations


class AuthenticationError(Exception):
    """Raised if an authentication fails. The message is sent to the client, so it must have no details
    (Kafka: SaslAuthenticationException).
    """
