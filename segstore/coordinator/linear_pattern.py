"""`LinearPattern`: regular expressions that strangers send, matched in time linear in the text, as Kafka does
by RE2/J. Python's `re` goes back over the text, which a pattern may make it do for ever.

Of RE2's syntax known are literals, `.`, classes as [a-z0-9_], [^,] and [[:alpha:]], \\d \\w \\s \\D \\W \\S,
\\pL and \\p{Lu} for Unicode's general categories (no scripts), \\a \\f \\n \\r \\t \\v and \\x41, other
characters behind a backslash as themselves, groups ( ), (?: ), (?P<name> ) and (?<name> ), the flags (?i),
(?s) and (?i: ), alternatives |, and ? * + {m} {m,} {m,n}, each also with ? behind it, which changes nothing
where a whole text is matched; ^ $ \\A \\z \\b \\B. All else is refused. A pattern becomes steps; a text is
matched by the set of steps that are possible after each character (Thompson).
Threads: any; a pattern does not change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple
from unicodedata import category

from segstore.errors import InvalidArgumentError

MOST_STEPS = 2000
MOST_NESTED = 50
Test = Callable[[str], bool]
Place = Callable[[str, str], bool]
"""Whether a place is one that is asked for, by the characters before and behind it, "" at the ends."""


class PatternStep(NamedTuple):
    """Goes on to `then` with a character that passes `test`; without a test it goes on to all of `then` at
    once, where there is a `place`, only there.
    """

    test: Test | None
    then: tuple[int, ...]
    place: Place | None = None


class LinearPattern:
    """A pattern for whole texts. Raises InvalidArgumentError for one that is not understood, or too large."""

    def __init__(self, pattern: str) -> None:
        steps = _Steps()
        reader = _PatternReader(pattern)
        tree = reader.whole()
        self._first = tree(steps, steps.add(None, ()))
        self._end, self._steps = 0, steps.steps

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        here = self._reached([self._first], "", text[:1])
        for at, character in enumerate(text):
            passed: list[int] = []
            for one in here:
                step = self._steps[one]
                if step.test is not None and step.test(character):
                    passed += step.then
            here = self._reached(passed, character, text[at + 1 : at + 2])
            if not here:
                return False
        return self._end in here

    def _reached(self, starts: Iterable[int], before: str, behind: str) -> set[int]:
        """Return these steps, and those that follow without a character at a place."""
        found: set[int] = set()
        left = list(starts)
        while left:
            at = left.pop()
            if at not in found:
                found.add(at)
                test, then, place = self._steps[at]
                if test is None and (place is None or place(before, behind)):
                    left += then
        return found


class _Steps:
    def __init__(self) -> None:
        self.steps: list[PatternStep] = []

    def add(self, test: Test | None, then: tuple[int, ...], place: Place | None = None) -> int:
        if len(self.steps) >= MOST_STEPS:
            raise InvalidArgumentError(f"a pattern has more than {MOST_STEPS} steps")
        self.steps.append(PatternStep(test, then, place))
        return len(self.steps) - 1


Tree = Callable[[_Steps, int], int]
"""Adds its steps before the one that is given, and returns the first of them."""


# --- trees ---------------------------------------------------------------------------------------


def _one(test: Test) -> Tree:
    return lambda steps, after: steps.add(test, (after,))


def _at(place: Place) -> Tree:
    return lambda steps, after: steps.add(None, (after,), place)


def _row(parts: list[Tree]) -> Tree:
    def add(steps: _Steps, after: int) -> int:
        if not parts:
            return steps.add(None, (after,))  # so that nothing, repeated often, is too large as well
        for part in reversed(parts):
            after = part(steps, after)
        return after

    return add


def _either(parts: list[Tree]) -> Tree:
    if len(parts) == 1:
        return parts[0]
    return lambda steps, after: steps.add(None, tuple(part(steps, after) for part in parts))


def _at_most(part: Tree, most: int) -> Tree:
    def add(steps: _Steps, after: int) -> int:
        first = after
        for _ in range(most):
            first = steps.add(None, (part(steps, first), after))
        return first

    return add


def _any_number(part: Tree) -> Tree:
    def add(steps: _Steps, after: int) -> int:
        again = steps.add(None, (after,))
        steps.steps[again] = PatternStep(None, (part(steps, again), after))
        return again

    return add


def _repeated(part: Tree, least: int, most: int | None) -> Tree:
    """Return a tree of `least` to `most` parts; None stands for any number."""
    if max(least, most or 0) > MOST_STEPS:
        raise InvalidArgumentError(f"a pattern repeats a part more than {MOST_STEPS} times")
    if most == 0:
        return _row([])
    if most is None:
        return _row([part] * least + [_any_number(part)])
    return _row([part] * least + [_at_most(part, most - least)])


# --- reader --------------------------------------------------------------------------------------

_KINDS: dict[str, Test] = {
    "d": lambda c: "0" <= c <= "9",
    "w": lambda c: c == "_" or (c.isascii() and c.isalnum()),
    "s": lambda c: c in " \t\n\r\f",
}
_KINDS |= {name.upper(): (lambda c, test=test: not test(c)) for name, test in _KINDS.items()}  # type: ignore[misc]
_PLACES: dict[str, Place] = {
    "A": lambda before, behind: not before,
    "z": lambda before, behind: not behind,
    "b": lambda before, behind: _is_word(before) != _is_word(behind),
    "B": lambda before, behind: _is_word(before) == _is_word(behind),
}
_ESCAPED = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_POSIX: dict[str, Test] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "ascii": str.isascii,
    "blank": lambda c: c in " \t",
    "cntrl": lambda c: c < " " or c == "\x7f",
    "digit": lambda c: "0" <= c <= "9",
    "graph": lambda c: "!" <= c <= "~",
    "lower": lambda c: "a" <= c <= "z",
    "print": lambda c: " " <= c <= "~",
    "punct": lambda c: "!" <= c <= "~" and not c.isalnum(),
    "space": lambda c: c in " \t\n\r\f\v",
    "upper": lambda c: "A" <= c <= "Z",
    "word": lambda c: _is_word(c),
    "xdigit": lambda c: c.isascii() and c in "0123456789abcdefABCDEF",
}
_CATEGORY = re.compile(r"[CLMNPSZ][a-z]?\Z")
_GROUP = re.compile(r"\?P?<[A-Za-z_][A-Za-z0-9_]*>|\?:")
_FLAGS = re.compile(r"\?([is]+)([:)])")
_HEX = re.compile(r"[0-9a-fA-F]{2}|\{([0-9a-fA-F]{1,6})\}")


def _is_word(character: str) -> bool:
    return character != "" and _KINDS["w"](character)


def _folded(test: Test) -> Test:
    return lambda c: test(c) or test(c.lower()) or test(c.upper())


_COUNTS: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}


class _PatternReader:
    """Reads a pattern from the left to the right."""

    def __init__(self, pattern: str) -> None:
        self._text, self._at, self._depth = pattern, 0, 0
        self._flags = ""

    def whole(self) -> Tree:
        tree = self._alternatives()
        if self._at < len(self._text):
            raise self._wrong()
        return tree

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _character(self) -> str:
        found = self._next
        if not found:
            raise self._wrong()
        self._at += 1
        return found

    def _wrong(self) -> InvalidArgumentError:
        return InvalidArgumentError(f"the pattern {self._text!r:.80} is not understood at {self._at}")

    def _alternatives(self) -> Tree:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return _either(parts)

    def _sequence(self) -> Tree:
        parts: list[Tree] = []
        while self._next and self._next not in "|)":
            parts.append(self._counted(self._atom()))
        return _row(parts)

    def _counted(self, part: Tree) -> Tree:
        if self._next in _COUNTS and self._next:
            least, most = _COUNTS[self._character()]
        elif self._take("{"):
            least, most = self._braces()
        else:
            return part
        self._take("?")
        if self._next and self._next in "*+{":
            raise self._wrong()
        return _repeated(part, least, most)

    def _braces(self) -> tuple[int, int | None]:
        least = self._number()
        most: int | None = least
        if self._take(","):
            most = None if self._next == "}" else self._number()
        if not self._take("}") or (most is not None and most < least):
            raise self._wrong()
        return least, most

    def _number(self) -> int:
        begin = self._at
        while self._next and self._next in "0123456789" and self._at - begin < 6:
            self._at += 1
        if begin == self._at:
            raise self._wrong()
        return int(self._text[begin : self._at])

    def _atom(self) -> Tree:
        character = self._character()
        if character == "(":
            return self._group()
        if character in "^$":
            return _at(_PLACES["A" if character == "^" else "z"])
        if character == "\\" and self._next and self._next in _PLACES:
            return _at(_PLACES[self._character()])
        if character == "[":
            return self._tested(self._class())
        if character == ".":
            return _one((lambda c: True) if "s" in self._flags else (lambda c: c != "\n"))
        if character in "*+?{":
            raise self._wrong()
        return self._tested(self._escaped() if character == "\\" else character.__eq__)

    def _tested(self, test: Test) -> Tree:
        return _one(_folded(test) if "i" in self._flags else test)

    def _group(self) -> Tree:
        """Read a group, whose flags end with it; flags alone, as (?i), count up to the end of the group
        around them.
        """
        self._depth += 1
        flags, outer = _FLAGS.match(self._text, self._at), self._flags
        named = _GROUP.match(self._text, self._at)
        if self._depth > MOST_NESTED or (self._next == "?" and not (flags or named)):
            raise self._wrong()
        if flags:
            self._at, self._flags = flags.end(), outer + flags[1]
            if flags[2] == ")":
                self._depth -= 1
                return _row([])
        elif named:
            self._at = named.end()
        tree = self._alternatives()
        self._depth, self._flags = self._depth - 1, outer
        if not self._take(")"):
            raise self._wrong()
        return tree

    def _escaped(self) -> Test:
        character = self._character()
        if character in _KINDS:
            return _KINDS[character]
        if character in "pP":
            return self._category(character == "P")
        if character == "x":
            return self._hex().__eq__
        if character in _ESCAPED:
            return _ESCAPED[character].__eq__
        if character.isalnum():
            raise self._wrong()
        return character.__eq__

    def _hex(self) -> str:
        found = _HEX.match(self._text, self._at)
        if found is None or int(found[1] or found[0], 16) > 0x10FFFF:
            raise self._wrong()
        self._at = found.end()
        return chr(int(found[1] or found[0], 16))

    def _category(self, inverted: bool) -> Test:
        name = self._character()
        if name == "{":
            end = self._text.find("}", self._at)
            name, self._at = self._text[self._at : end], end + 1
        if not _CATEGORY.match(name):
            raise self._wrong()
        return lambda c: category(c).startswith(name) != inverted

    def _class(self) -> Test:
        inverted = self._take("^")
        tests: list[Test] = []
        while not tests or self._next != "]":
            tests.append(self._member())
        self._take("]")
        return lambda c: any(test(c) for test in tests) != inverted

    def _member(self) -> Test:
        low = self._character()
        if low == "\\":
            return self._escaped()
        if low == "[" and self._next == ":" and ":]" in self._text[self._at :]:
            return self._posix()
        if self._next != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return low.__eq__
        self._take("-")
        high = self._character()
        if high == "\\" or high < low:
            raise self._wrong()
        return lambda c: low <= c <= high

    def _posix(self) -> Test:
        end = self._text.find(":]", self._at)
        inverted = self._text.startswith(":^", self._at)
        name = self._text[self._at + 1 + inverted : end]
        if name not in _POSIX:
            raise self._wrong()
        self._at, test = end + 2, _POSIX[name]
        return lambda c: test(c) != inverted
