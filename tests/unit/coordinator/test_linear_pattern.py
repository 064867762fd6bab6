"""Patterns of strangers: they match what Python's `re` matches, and end soon whatever they are."""

from __future__ import annotations

import re

import pytest

from segstore.coordinator.linear_pattern import LinearPattern
from segstore.errors import InvalidArgumentError

PATTERNS = {
    "a.*b": ["ab", "axxb", "axx", "a\nb"],
    "(a|bc)+": ["", "a", "abca", "abcb"],
    "x{2,3}": ["x", "xx", "xxx", "xxxx"],
    "x{2,}y{0}": ["x", "xxxxx", "xxy"],
    "[a-c_]+\\d?": ["abc1", "abc12", "d", "_"],
    "[^a-c]\\w\\W": ["dé!", "de!", "ae!", "dea"],
    "^my-app(?:-[0-9]+)?$": ["my-app", "my-app-12", "my-app-", "xmy-app"],
    "a*?b+?|": ["", "aab", "abbb", "ba"],
    "[]x]\\.": ["].", "x.", "xx"],
    "": ["", "a"],
    "(^a|^b.*)|(c$)": ["a", "ab", "bx", "c", "cc", "xc"],
    "a^b|a$b|^^a$$": ["ab", "a", "a^b"],
    "(?i)a[b-d]\\x41|(?i:X)y": ["aba", "ACa", "aBA", "xy", "XY", "abc"],
    "(?s)a.b|(?P<n>c)": ["a\nb", "axb", "c", "ab"],
    "\\ba\\b.\\Bc": ["a-c", "abc", "a c", "a--"],
    "\\Aa\\t\\x7e?": ["a\t", "a\t~", "at"],
}
OTHER = {  # what `re` does not have
    "[[:alpha:]_[:^digit:]]+": {"ab_": True, "a1": False, "-": True},
    "\\p{Lu}\\pL*\\PL\\x{e9}": {"Éa1é": True, "ea1é": False, "É1é": True},
    "(?<n>a)\\z": {"a": True, "b": False},
    "[[:^x]+": {"[:^x": True, "y": False},
}


@pytest.mark.parametrize("pattern", OTHER)
def test_what_only_re2_has_is_known(pattern: str) -> None:
    assert {text: LinearPattern(pattern).matches(text) for text in OTHER[pattern]} == OTHER[pattern]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_whole_texts_match_as_by_re(pattern: str) -> None:
    for text in PATTERNS[pattern]:
        assert LinearPattern(pattern).matches(text) == bool(re.fullmatch(pattern, text, re.ASCII)), text


REFUSED = [
    *("(", ")", "[a", "a**", "*", "(?=x)", "(?P<n", "(?P=n)", "(?x)a", "\\k", "\\1", "x{", "x{2", "x{3,2}"),
    *("\\pX", "\\p{Greek}", "\\p{L", "\\x4", "\\x{110000}", "[[:no:]]", "[b-a]"),
    *("x{99999}", "((a{40}){40}){40}", "((){2000}){2000}", "((x{0}){2000}){2000}", "(" * 60 + ")" * 60),
]


@pytest.mark.parametrize("pattern", REFUSED)
def test_other_patterns_are_refused_by_name(pattern: str) -> None:
    with pytest.raises(InvalidArgumentError, match="pattern"):
        LinearPattern(pattern)


def test_no_pattern_goes_back_over_the_text() -> None:
    """A step is tested at most once for each character: `re` would need 2^200 tests."""
    pattern = LinearPattern("(a*)*b")
    tested = 0
    for at, step in enumerate(pattern._steps):
        if step.test is not None:

            def counted(character: str, test: object = step.test) -> bool:
                nonlocal tested
                tested += 1
                return bool(test(character))  # type: ignore[operator]

            pattern._steps[at] = step._replace(test=counted)
    assert not pattern.matches("a" * 200)
    assert tested <= 200 * len(pattern._steps)
