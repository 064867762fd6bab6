"""`error_answer`: a response with one error code at its top level, and for each requested topic, partition or
group (Kafka: AbstractRequest.getErrorResponse).

Threads: any; no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from segstore.protocol.codec import Struct, structs
from segstore.protocol.definitions import Field, Message, message
from segstore.server.request import Request

_ALIASES = (
    ("name", "topic", "topic_name", "user"),
    ("partition_index", "partition", "index", "partition_id"),
)
"""Each tuple has the names that the same field has in different requests and responses."""
_OF_A_TEXT = ("key", "group_id", "transactional_id", "name")
_OF_A_NUMBER = ("partition_index", "partition_id")
"""Field names of response structs. An array of texts or numbers in a request is answered with an array of
structs: each text or number is copied to the first of these fields that the struct has.
"""


def error_answer(request: Request, code: int, message_text: str | None = None) -> Struct:
    """Return the response's body with `code` in each field for an error code, and `message_text` in each
    field for an error message.
    """
    asked, answer = (message(f"{request.api.message}{kind}") for kind in ("Request", "Response"))
    body: Struct = structs(answer.name)()
    _Errors(asked, answer, request.version, code, message_text).fill(
        body, answer.name, request.body, asked.name
    )
    return body


class _Errors:
    """Fills the structs of one response with an error code."""

    def __init__(
        self, asked: Message, answer: Message, version: int, code: int, message_text: str | None
    ) -> None:
        self.asked, self.answer, self.version, self.code = asked, answer, version, code
        self.message_text = message_text
        self.kinds = structs(answer.name)

    def fill(self, body: Struct, kind: str, source: Any, source_kind: str) -> None:
        """Set the error codes of `body`, a struct of the response, and fill its arrays from the arrays of
        `source`, a struct of the request.
        """
        arrays = self._asked_arrays(source, source_kind)
        for field in self._fields(self.answer, kind):
            if _is_code(field):
                setattr(body, field.name, self.code)
            elif field.name == "error_message" and self.message_text is not None:
                setattr(body, field.name, self.message_text)
            elif field.kind == "records" and self.version not in field.nullable:
                setattr(body, field.name, b"")
            elif field.is_array and field.is_struct and self._has_code(field.kind):
                found = next(arrays, None)
                if found is not None:
                    setattr(body, field.name, list(self._elements(field.kind, *found)))

    def _elements(self, kind: str, asked: Field, elements: Iterable[Any]) -> Iterator[Struct]:
        for each in elements:
            made: Struct = getattr(self.kinds, kind)()
            if asked.is_struct:
                named = self._copy(made, kind, each, asked.kind)
                self.fill(made, kind, each, asked.kind)
            else:
                named = _name(made, each)
                self.fill(made, kind, None, "")
            if named:
                yield made
            # Some arrays are only in the request, such as `dirs` of AlterReplicaLogDirs. Arrays within their
            # structs, such as `topics`, are in the response.
            elif asked.is_struct:
                for inner in self._asked_arrays(each, asked.kind):
                    yield from self._elements(kind, *inner)

    def _copy(self, made: Struct, kind: str, source: Struct, source_kind: str) -> bool:
        """Copy into `made` the fields that identify a topic, partition or group; return whether a field
        was copied.
        """
        there = {f.name: f for f in self._fields(self.asked, source_kind)}
        found = False
        for field in self._fields(self.answer, kind):
            same = there.get(next((alias for alias in _same(field.name) if alias in there), ""))
            if same is None or same.is_array != field.is_array or same.is_struct != field.is_struct:
                continue
            value = getattr(source, same.name)
            if value is None and self.version not in field.nullable:
                continue
            if not (field.is_struct and self._has_code(field.kind)):
                setattr(made, field.name, self._copied(field, value, same))
                found = True
        return found

    def _copied(self, field: Field, value: Any, asked: Field) -> Any:
        """Return a request's value for a field of the response. If the field is an array of structs, such as
        the entity of a quota, copy the request's structs to structs of the response.
        """
        if not (field.is_struct and field.is_array):
            return value
        made = [getattr(self.kinds, field.kind)() for _ in value]
        for one, each in zip(made, value, strict=True):
            self._copy(one, field.kind, each, asked.kind)
        return made

    def _asked_arrays(self, source: Any, kind: str) -> Iterator[tuple[Field, list[Any]]]:
        """Yield the arrays of a request's struct, with their fields, except null arrays."""
        for field in self._fields(self.asked, kind) if kind else ():
            value = getattr(source, field.name)
            if field.is_array and value is not None:
                yield field, value

    def _has_code(self, kind: str) -> bool:
        """Return whether a struct of the response, or a struct within it, has an error code."""
        fields = self._fields(self.answer, kind)
        return any(_is_code(f) or (f.is_array and f.is_struct and self._has_code(f.kind)) for f in fields)

    def _fields(self, definition: Message, kind: str) -> Iterator[Field]:
        return (f for f in definition.structs[kind] if self.version in f.versions)


def _is_code(field: Field) -> bool:
    return field.name in ("error_code", "partition_error_code")


def _same(name: str) -> tuple[str, ...]:
    return next(((name, *names) for names in _ALIASES if name in names), (name,))


def _name(made: Struct, value: Any) -> bool:
    wanted = _OF_A_TEXT if isinstance(value, str) else _OF_A_NUMBER
    name = next((each for each in wanted if each in made.__slots__), None)
    if name is not None:
        setattr(made, name, value)
    return name is not None
