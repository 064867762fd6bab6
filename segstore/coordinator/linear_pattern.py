"""`LinearPattern`: matches regular expressions of untrusted clients in a time that is linear in the length of
the text, as Kafka does by RE2/J. Python's `re` backtracks: for some patterns it takes exponential time.

If the package google-re2 is installed, it does the matching, and the syntax is that of RE2. If it is not
installed, patterns must have a simple form. This form allows literals, `.`, classes as [a-z0-9_] and [^,],
\\d \\w \\s \\D \\W \\S, an escaped character that is no letter or digit, groups ( ) and (?: ), alternatives
with |, and the repeats ? * +. Lazy repeats as *? are allowed, and have no effect, because a pattern must
match the whole text. Outside of groups, an alternative may begin with ^ and end with $. Any other pattern is
refused with an error that names the unsupported construct. The pattern becomes a Glushkov automaton, with a
position for each character of the pattern. The matching computes the set of possible positions after each
character of the text.

Nothing is on disk. Threads: any; a pattern does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from segstore.errors import InvalidArgumentError

MOST_CHARACTERS = 2000
MOST_NESTED = 50
Test = Callable[[str], bool]


class LinearPattern:
    """A regular expression, which must match the whole of a text.

    The constructor raises InvalidArgumentError if `pattern` is no regular expression. If google-re2 is not
    installed, it is also raised if the pattern does not have the simple form that the module's docstring
    describes, has more than MOST_CHARACTERS characters, or has groups nested deeper than MOST_NESTED.
    """

    def __init__(self, pattern: str) -> None:
        self.matches: Test = _by_re2(pattern) or _SimplePattern(pattern).matches
        """A function that returns whether the pattern matches the whole text."""


def _by_re2(pattern: str) -> Test | None:
    try:
        import re2
    except ImportError:
        return None
    if not hasattr(re2, "Options"):
        # `re2` is another package than google-re2; it may use Python's `re`.
        return None
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise InvalidArgumentError(f"the pattern {pattern!r:.80} is not understood: {error}") from None
    return lambda text: compiled.fullmatch(text) is not None


# --- the simple form -----------------------------------------------------------------------------


class _PatternPart(NamedTuple):
    """A part of a pattern. `is_nullable`: the part matches the empty text. `first` and `last`: the positions
    of the automaton at which a non-empty match may begin and end; bit n stands for position n.
    """

    is_nullable: bool
    first: int
    last: int


_EMPTY = _PatternPart(True, 0, 0)
_KINDS: dict[str, Test] = {
    "d": lambda c: "0" <= c <= "9",
    "w": lambda c: c == "_" or (c.isascii() and c.isalnum()),
    "s": lambda c: c in " \t\n\r\f",
}
_KINDS |= {name.upper(): (lambda c, test=test: not test(c)) for name, test in _KINDS.items()}  # type: ignore[misc]


def _bits(positions: int) -> Iterator[int]:
    while positions:
        lowest = positions & -positions
        yield lowest.bit_length() - 1
        positions ^= lowest


class _SimplePattern:
    """A pattern of the simple form, as a Glushkov automaton. `_tests` has a function for each position, which
    accepts characters; `_follow` has for each position the positions that may come next, as bits.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MOST_CHARACTERS:
            raise InvalidArgumentError(f"a pattern has more than {MOST_CHARACTERS} characters")
        self._text, self._at, self._depth = pattern, 0, 0
        self._tests: list[Test] = []
        self._follow: list[int] = []
        self._whole = self._alternatives()
        if self._at < len(pattern):
            raise self._wrong()

    def matches(self, text: str) -> bool:
        reached, at_end = self._whole.first, self._whole.is_nullable
        for character in text:
            passed = [at for at in _bits(reached) if self._tests[at](character)]
            reached, at_end = 0, any(self._whole.last >> at & 1 for at in passed)
            for at in passed:
                reached |= self._follow[at]
        return at_end

    # --- parts ------------------------------------------------------------------------------

    def _one(self, test: Test) -> _PatternPart:
        self._tests.append(test)
        self._follow.append(0)
        return _PatternPart(False, 1 << len(self._tests) - 1, 1 << len(self._tests) - 1)

    def _link(self, last: int, first: int) -> None:
        for at in _bits(last):
            self._follow[at] |= first

    def _alternatives(self) -> _PatternPart:
        found = self._row()
        while self._take("|"):
            other = self._row()
            found = _PatternPart(
                found.is_nullable or other.is_nullable, found.first | other.first, found.last | other.last
            )
        return found

    def _row(self) -> _PatternPart:
        found = _EMPTY
        while self._depth == 0 and self._take("^"):
            pass
        while self._next not in ("", "|", ")") and not self._at_dollar():
            part = self._counted(self._atom())
            self._link(found.last, part.first)
            first = found.first | (part.first if found.is_nullable else 0)
            last = part.last | (found.last if part.is_nullable else 0)
            found = _PatternPart(found.is_nullable and part.is_nullable, first, last)
        return found

    def _at_dollar(self) -> bool:
        """Return whether the next characters are a $ that ends an alternative outside of groups; skip the $
        if so.
        """
        if self._depth or self._next != "$":
            return False
        rest = self._text[self._at :].lstrip("$")
        if rest[:1] not in ("", "|"):
            return False
        self._at = len(self._text) - len(rest)
        return True

    def _counted(self, part: _PatternPart) -> _PatternPart:
        count = self._next
        if count == "{":
            raise self._unsupported("a counted repeat")
        if not count or count not in "?*+":
            return part
        self._at += 1
        self._take("?")
        if self._next and self._next in "*+?{":
            raise self._wrong()
        if count != "?":
            self._link(part.last, part.first)
        return part if count == "+" else part._replace(is_nullable=True)

    def _atom(self) -> _PatternPart:
        character = self._character()
        if character == "(":
            return self._group()
        if character == "[":
            return self._one(self._class())
        if character == ".":
            return self._one(lambda c: c != "\n")
        if character in "^$":
            raise self._unsupported(f"{character} within an alternative")
        if character in "*+?{":
            raise self._wrong()
        return self._one(self._escaped() if character == "\\" else character.__eq__)

    def _group(self) -> _PatternPart:
        if not self._take("?:") and self._next == "?":
            raise self._unsupported("a group with (?")
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise self._wrong()
        found = self._alternatives()
        self._depth -= 1
        if not self._take(")"):
            raise self._wrong()
        return found

    # --- characters ---------------------------------------------------------------------------

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
        if low == "[" and self._next == ":":
            raise self._unsupported("a class as [:alpha:]")
        if self._next != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return low.__eq__
        self._take("-")
        high = self._character()
        if high == "\\" or high < low:
            raise self._wrong()
        return lambda c: low <= c <= high

    def _escaped(self) -> Test:
        character = self._character()
        if character in _KINDS:
            return _KINDS[character]
        if character.isalnum():
            raise self._unsupported(f"\\{character}")
        return character.__eq__

    # --- text ---------------------------------------------------------------------------------

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _character(self) -> str:
        if not self._next:
            raise self._wrong()
        self._at += 1
        return self._text[self._at - 1]

    def _wrong(self) -> InvalidArgumentError:
        return InvalidArgumentError(f"the pattern {self._text!r:.80} is not understood at {self._at}")

    def _unsupported(self, part: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the pattern {self._text!r:.80} has {part} at {self._at}, which needs the package google-re2: "
            "pip install google-re2"
        )
