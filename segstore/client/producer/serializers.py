"""Keys and values into bytes, by the application's functions. Nothing on disk.

Threads: the application's functions are called in the thread that sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segstore.errors import SerializationError
from segstore.mutex import calls_out

Serialize = Callable[[str, Any, Any], "bytes | None"]


def serializer(what: str, given: Any) -> Serialize:
    """From a callable f(data), an object with serialize(topic, headers, data), or None.

    What it gives must be bytes, bytearray, memoryview or None: it is copied where it could change.
    SerializationError, of what `given` raises too.
    """
    call: Callable[[str, Any, Any], Any] | None = None
    if given is not None:
        call = getattr(given, "serialize", None) or (lambda topic, headers, data: given(data))

    @calls_out
    def serialize(topic: str, headers: Any, data: Any) -> bytes | None:
        made = data
        if call is not None:
            try:
                made = call(topic, headers, data)
            except Exception as error:
                raise SerializationError(f"the {what} {data!r:.80} can't be serialized: {error}") from error
        if made is None or type(made) is bytes:
            return made
        if isinstance(made, bytes | bytearray | memoryview):
            return bytes(made)
        hint = "" if call else f"; give a {what}_serializer"
        raise SerializationError(
            f"the {what} is {type(made).__name__}: allowed are bytes, bytearray, memoryview or None{hint}"
        )

    return serialize


def close(given: Any) -> None:
    """Tell a serializer of kafka-python's that it is no longer needed."""
    closing = getattr(given, "close", None)
    if callable(closing):
        closing()
