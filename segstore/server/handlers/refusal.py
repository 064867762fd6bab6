"""`Refusal`: what a request asks for is refused, with a code that no error of the engine stands for."""

from __future__ import annotations

from segstore.errors import SegstoreError
from segstore.protocol.error_codes import Code, code_of


class Refusal(Exception):
    """A part of a request can't be done; the rest may be."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


REFUSED = (SegstoreError, Refusal)
"""What a client is told of by a code and a message."""


def told(error: SegstoreError | Refusal) -> tuple[Code, str]:
    """Return the code and the message that tell a client of an error."""
    return (error.code if isinstance(error, Refusal) else code_of(error)), str(error)
