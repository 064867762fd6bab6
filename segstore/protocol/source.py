"""Generates the source code of codecs: for each structure of a message, a function that reads or writes the
structure's fields in one version.

Adjacent fields of fixed size are read and written by one struct call.
"""

from __future__ import annotations

import struct
from itertools import groupby

from .definitions import MADE, Field, Message

_CODES = {
    "bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q",
    "float64": "d", "uuid": "16s",
}  # fmt: skip
_NUMBERS = {"int8", "int16", "uint16", "int32", "uint32", "int64", "float64"}


def decoder_source(message: Message, version: int) -> str:
    """Return the source of functions `read_STRUCT(data, at, left)`, which return (object, position after the
    object's bytes).
    """
    return "\n".join(
        line for name in message.structs for line in _MessageReader(message, version).struct(name)
    )


def encoder_source(message: Message, version: int) -> str:
    """Return the source of functions `write_STRUCT(value, out, slices)`."""
    return "\n".join(line for name in message.structs for line in _Writer(message, version).struct(name))


class _CodecSource:
    """The common base of `_MessageReader` and `_Writer`, which make the source for one message in one
    version.
    """

    def __init__(self, message: Message, version: int) -> None:
        self.message, self.version = message, version
        self.flexible = version in message.flexible

    def plain(self, struct: str) -> list[tuple[bool, list[Field]]]:
        """Return the structure's untagged fields in this version, in runs. A run is (True, adjacent fields of
        fixed size) or (False, one other field).
        """
        fields = [f for f in self.message.structs[struct] if self.has(f) and not self.is_tagged(f)]
        runs = [(fixed, list(run)) for fixed, run in groupby(fields, lambda f: self.code(f) is not None)]
        return [(fixed, part) for fixed, run in runs for part in ([run] if fixed else [[f] for f in run])]

    def tagged(self, struct: str) -> list[Field]:
        fields = [f for f in self.message.structs[struct] if self.has(f) and self.is_tagged(f)]
        return sorted(fields, key=lambda f: f.tag)

    def has(self, field: Field) -> bool:
        return self.version in field.versions

    def is_tagged(self, field: Field) -> bool:
        return self.flexible and self.version in field.tagged

    def may_lack(self, field: Field) -> bool:
        """Return whether the bytes of a message may lack a field; the field then has its default."""
        return not self.has(field) or self.is_tagged(field)

    def is_nullable(self, field: Field) -> bool:
        return self.version in field.nullable

    @staticmethod
    def code(field: Field) -> str | None:
        return None if field.is_array else _CODES.get(field.kind)


class _MessageReader(_CodecSource):
    def struct(self, name: str) -> list[str]:
        lines = [f"def read_{name}(data, at, left):", f" made = {name}.__new__({name})"]
        lines += [
            f" made.{field.name} = {fresh(field)}"
            for field in self.message.structs[name]
            if self.may_lack(field)
        ]
        for fixed, run in self.plain(name):
            lines += self.fixed(name, run) if fixed else self.field(run[0], " ")
        if self.flexible:
            lines += self.tags(name)
        return [*lines, " return made, at"]

    def fixed(self, name: str, run: list[Field]) -> list[str]:
        form = ">" + "".join(str(self.code(field)) for field in run)
        targets = "".join(f"made.{field.name}, " for field in run)
        return [f" {targets}= unpack({form!r}, data, at)", f" at += {struct.calcsize(form)}"]

    def field(self, field: Field, pad: str) -> list[str]:
        if field.is_array:
            return self.array(field, pad)
        target, nullable = f"made.{field.name}", self.is_nullable(field)
        if field.is_struct:
            read = f"{pad}{target}, at = read_{field.kind}(data, at, left)"
            if not nullable:
                return [read]
            # In a tagged field null is an unsigned varint of 0, in other fields an int8 of -1.
            present = "data[at - 1]" if self.is_tagged(field) else "unpack('>b', data, at - 1)[0] >= 0"
            return [f"{pad}{target} = None", f"{pad}at += 1", f"{pad}if {present}:", " " + read]
        if (code := self.code(field)) is not None:
            form = ">" + code
            return [f"{pad}{target}, = unpack({form!r}, data, at)", f"{pad}at += {struct.calcsize(form)}"]
        return [f"{pad}{target}, at = read_{field.kind}(data, at, {self.flexible}, {nullable})"]

    def array(self, field: Field, pad: str) -> list[str]:
        target = f"made.{field.name}"
        lines = [f"{pad}count, at = read_count(data, at, {self.flexible}, {self.is_nullable(field)}, left)"]
        if field.kind in _NUMBERS:
            read = f"read_numbers(data, at, count, {_CODES[field.kind]!r})"
            return [
                *lines,
                f"{pad}if count < 0: {target} = None",
                f"{pad}else: {target}, at = {read}",
            ]
        lines += [f"{pad}{target} = None if count < 0 else []", f"{pad}for _ in range(count):"]
        return [*lines, f"{pad} one, at = {self.element(field)}", f"{pad} {target}.append(one)"]

    def element(self, field: Field) -> str:
        if field.is_struct:
            return f"read_{field.kind}(data, at, left)"
        if field.kind in _CODES:
            form = ">" + _CODES[field.kind]
            return f"unpack({form!r}, data, at)[0], at + {struct.calcsize(form)}"
        return f"read_{field.kind}(data, at, {self.flexible}, False)"

    def tags(self, name: str) -> list[str]:
        lines = [" if not data[at]: return made, at + 1"]
        lines += [" number, at = read_uvarint(data, at)", " last = -1", " for _ in range(number):"]
        lines += ["  tag, at = read_uvarint(data, at)", "  size, at = read_uvarint(data, at)"]
        lines += ["  if tag <= last or size > len(data) - at: bad('tagged fields are damaged')"]
        lines += ["  last, end = tag, at + size"]
        for n, field in enumerate(self.tagged(name)):
            lines.append(f"  {'elif' if n else 'if'} tag == {field.tag}:")
            lines += self.field(field, "   ")
            lines.append("   if at != end: bad('a tagged field has another length than its content')")
        return [*lines, "  at = end"]


class _Writer(_CodecSource):
    def struct(self, name: str) -> list[str]:
        lines = [f"def write_{name}(value, out, slices):"]
        plain = self.plain(name)
        has_no_tags = self.flexible and not self.tagged(name)  # a zero byte stands for no tagged fields
        is_padded = has_no_tags and bool(plain) and plain[-1][0]
        for n, (fixed, run) in enumerate(plain, 1):
            padding = "x" if is_padded and n == len(plain) else ""
            lines += self.fixed(run, padding) if fixed else self.field(run[0], " ", "out")
        if has_no_tags and not is_padded:
            lines.append(" out.append(0)")
        elif self.flexible and not has_no_tags:
            lines += self.tags(name)
        return [*lines, " return"]

    def fixed(self, run: list[Field], padding: str) -> list[str]:
        form = ">" + "".join(str(self.code(field)) for field in run) + padding
        values = (self.value(field.kind, f"value.{field.name}") for field in run)
        return [f" out += pack({form!r}, {', '.join(values)})"]

    @staticmethod
    def value(kind: str, source: str) -> str:
        return f"uuid({source})" if kind == "uuid" else source

    def field(self, field: Field, pad: str, out: str) -> list[str]:
        if field.is_array:
            return self.array(field, pad, out)
        source = f"value.{field.name}"
        if field.is_struct:
            write = f"write_{field.kind}({source}, {out}, slices)"
            if not self.is_nullable(field):
                return [pad + write]
            return [
                f"{pad}if {source} is None: {out}.append({0 if self.is_tagged(field) else 255})",
                f"{pad}else:",
                f"{pad} {out}.append(1)",
                f"{pad} {write}",
            ]
        if field.kind == "records":
            return self.records(source, pad, out)
        check = [] if self.is_nullable(field) else self.no_null(field, source, pad)
        return [*check, pad + self.scalar(field.kind, source, out)]

    def no_null(self, field: Field, source: str, pad: str) -> list[str]:
        if field.kind in _CODES:
            return []
        return [f"{pad}if {source} is None: raise TypeError('{field.name} is null')"]

    def scalar(self, kind: str, source: str, out: str) -> str:
        if kind in _CODES:
            return f"{out} += pack({'>' + _CODES[kind]!r}, {self.value(kind, source)})"
        return f"write_{kind}({out}, {source}, {self.flexible})"

    def records(self, source: str, pad: str, out: str) -> list[str]:
        return [
            f"{pad}held = {source}",
            f"{pad}if slices is not None and hasattr(held, 'fileno'):",
            *self.length("held", pad + " ", out),
            f"{pad} slices.append((len({out}), held))",
            f"{pad}else: write_bytes({out}, held, {self.flexible})",
        ]

    def array(self, field: Field, pad: str, out: str) -> list[str]:
        source = f"value.{field.name}"
        lines = [] if self.is_nullable(field) else self.no_null(field, source, pad)
        lines += [f"{pad}if {source} is None: write_length({out}, -1, {self.flexible}, True)", f"{pad}else:"]
        lines += self.length(source, pad + " ", out)
        if field.kind in _NUMBERS:
            packed = f"pack(f'>{{len({source})}}{_CODES[field.kind]}', *{source})"
            return [*lines, f"{pad} if {source}: {out} += {packed}"]
        if not field.is_struct:
            return [*lines, f"{pad} for one in {source}:", f"{pad}  {self.scalar(field.kind, 'one', out)}"]
        return [
            *lines,
            f"{pad} if type({source}) is Packed: {out} += {source}.of({self.version})",
            f"{pad} else:",
            f"{pad}  for one in {source}: write_{field.kind}(one, {out}, slices)",
        ]

    def length(self, source: str, pad: str, out: str) -> list[str]:
        """Return lines of code that write the length (bytes or elements) of the expression `source`."""
        if not self.flexible:
            return [f"{pad}{out} += pack('>i', len({source}))"]
        return [
            f"{pad}size = len({source}) + 1",
            f"{pad}if size < ONE_BYTE: {out}.append(size)",
            f"{pad}else: {out} += uvarint(size)",
        ]

    def tags(self, name: str) -> list[str]:
        lines = [" tags = []"]
        for field in self.tagged(name):
            lines += [f" if {self.differs(field, 'value')}:", "  part = bytearray()"]
            lines += self.field(field, "  ", "part")
            lines.append(f"  tags.append(({field.tag}, part))")
        lines += [" out.append(len(tags))", " for tag, part in tags:"]
        return [*lines, "  out += uvarint(tag) + uvarint(len(part)) + part"]

    def differs(self, field: Field, owner: str) -> str:
        """Return the source of an expression that is true if a field differs from its default."""
        # Fields are compared one by one, because a comparison with a default object would have to make this
        # object each time.
        source = f"{owner}.{field.name}"
        if field.is_struct and not field.is_array and field.default == MADE:
            fields = " or ".join(self.differs(each, source) for each in self.message.structs[field.kind])
            return f"{source} is None or {fields}" if self.is_nullable(field) else fields
        return f"{source} != {fresh(field)}"


def fresh(field: Field) -> str:
    """Return the source of a field's default value."""
    if field.default == MADE:
        return "[]" if field.is_array else f"{field.kind}()"
    return repr(field.default)
