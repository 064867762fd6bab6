"""`Refusal`: an exception that carries any error code, also a code without a class in `segstore.errors`."""

from __future__ import annotations

from segstore.errors import SegstoreError
from segstore.protocol.error_codes import Code, code_of


class Refusal(Exception):
    """Raised to refuse one item of a request with `code` and a message. Other items of the request may
    succeed.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


REFUSED = (SegstoreError, Refusal)
"""The exceptions for which an item of the answer gets an error code and a message."""


def code_and_message(error: SegstoreError | Refusal) -> tuple[Code, str]:
    """Return the answer's error code and message for an exception."""
    return (error.code if isinstance(error, Refusal) else code_of(error)), str(error)
