"""`ProtobufDecoder`: decodes Protobuf messages to columns, by google.protobuf.

A byte 0 at the beginning of a value means that Confluent's prefix and the path of the message's type come
first; they are skipped. No message begins with a byte 0, because no field has the number 0.

Nothing is on disk. Threads: any number of threads may use a decoder at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from segstore.errors import InvalidArgumentError

from .confluent import message_at
from .decoding import BadValues, Columns, reason_of
from .protobuf_types import fields


def message_class(schema: Any) -> Any:
    """Return the message class for `schema`, which is a message class or a descriptor. Raises
    InvalidArgumentError if it is neither.
    """
    if isinstance(schema, Descriptor):
        return GetMessageClass(schema)
    if isinstance(schema, type) and issubclass(schema, Message):
        return schema
    raise InvalidArgumentError(f"value_schema={schema!r:.80}: must be a Protobuf message class or descriptor")


class ProtobufDecoder:
    """A decoder for messages of one class. The constructor raises InvalidArgumentError if `schema` is neither
    a message class nor a descriptor.
    """

    is_object = True

    def __init__(self, schema: Any) -> None:
        self._class = message_class(schema)
        self._fields = {each.name: each for each in fields(self._class.DESCRIPTOR)}
        self.schema = pa.schema([(each.name, each.type) for each in self._fields.values()])

    def columns(self, values: pa.Array, names: Sequence[str]) -> Columns:
        """Decode the values, and return the columns `names`. Raises BadValues, pyarrow.ArrowInvalid."""
        messages: list[Any] = []
        bad: dict[int, str] = {}
        parse = self._class.FromString
        for i, data in enumerate(values.to_pylist()):
            try:
                if data is not None and data[:1] == b"\0":
                    data = data[message_at(data) :]
                messages.append(None if data is None else parse(data))
            except Exception as error:
                bad[i] = reason_of(error)
        if bad:
            raise BadValues(bad)
        return [self._column(name, messages) for name in names]

    def _column(self, name: str, messages: Sequence[Any]) -> pa.Array:
        field = self._fields[name]
        of = field.of
        return pa.array([None if each is None else of(each) for each in messages], field.type)
