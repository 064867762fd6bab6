"""Patterns of strangers, by google-re2 and without it: they match what Python's `re` matches, and end soon
whatever they are.
"""

from __future__ import annotations

import random
import re
import sys
from types import SimpleNamespace

import pytest

from segstore.coordinator import linear_pattern
from segstore.coordinator.linear_pattern import MOST_CHARACTERS, LinearPattern, _SimplePattern
from segstore.errors import InvalidArgumentError

SIMPLE = {
    "orders-.*": ["orders-", "orders-eu", "order-eu", "xorders-1"],
    "a|b": ["a", "b", "ab", ""],
    "[a-z]+\\.x": ["abc.x", ".x", "abcx", "A.x"],
    "a.*b": ["ab", "axxb", "axx", "a\nb"],
    "(a|bc)+": ["", "a", "abca", "abcb"],
    "(?:(a?)*|b)c*": ["", "aac", "bcc", "ab", "cca"],
    "[a-c_]+\\d?": ["abc1", "abc12", "d", "_"],
    "[^a-c]\\w\\W": ["dé!", "de!", "ae!", "dea"],
    "\\D\\S\\s": ["ab ", "1b ", "a  ", "abc"],
    "^my-app(?:-[0-9]+)?$": ["my-app", "my-app-12", "my-app-", "xmy-app"],
    "^a|^b.*$|c$$": ["a", "ab", "bx", "c", "cc", "xc"],
    "a*?b+?|": ["", "aab", "abbb", "ba"],
    "[]x]\\.": ["].", "x.", "xx"],
    "[a-]": ["a", "-", "b"],
    "[^-\\d]x": ["ax", "-x", "1x"],
    "": ["", "a"],
    "(((a)))()": ["a", "", "aa"],
}
FULL = {  # of RE2 alone: the pattern, the name of what the simple form lacks, and texts
    "x{2,3}": ("a counted repeat", {"x": False, "xx": True, "xxxx": False}),
    "(?i)a[b-d]": ("a group with (?", {"aB": True, "ae": False}),
    "(?P<n>a)b": ("a group with (?", {"ab": True, "b": False}),
    "a^b|a$b": ("^ within an alternative", {"ab": False}),
    "(^a|c$)": ("^ within an alternative", {"a": True, "c": True, "b": False}),
    "\\ba": ("\\b", {"a": True, "-": False}),
    "[[:alpha:]_]+": ("a class as [:alpha:]", {"ab_": True, "a1": False}),
    "\\p{Lu}\\pL*": ("\\p", {"Éa": True, "éa": False}),
    "\\p{Greek}+": ("\\p", {"αβ": True, "ab": False}),
    "[\\x41]": ("\\x", {"A": True, "x": False}),
}
REFUSED = ["(", ")", "[a", "a**", "*", "a|*", "(?=x)", "(?P<n", "(?P=n)", "(?x)a", "\\k", "\\1", "\\"]
REFUSED += ["x{3,2}", "\\pX", "\\p{L", "\\x4", "[[:no:]]", "[b-a]", "x{99999}", "((a{40}){40}){40}"]


@pytest.fixture(params=["google-re2", "the simple form"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "google-re2":
        pytest.importorskip("re2")
    else:
        monkeypatch.setitem(sys.modules, "re2", None)
    return str(request.param)


@pytest.mark.parametrize("pattern", SIMPLE)
def test_whole_texts_match_as_by_re(pattern: str, engine: str) -> None:
    for text in SIMPLE[pattern]:
        assert LinearPattern(pattern).matches(text) == bool(re.fullmatch(pattern, text, re.ASCII)), text


def test_drawn_patterns_match_as_by_re(engine: str, rng: random.Random) -> None:
    for _ in range(300):
        pattern = drawn(rng, 2)  # `re` takes for ever with deeper ones
        compiled = LinearPattern(pattern)
        for _ in range(10):
            text = "".join(rng.choices("abc-\n", k=rng.randrange(6)))
            assert compiled.matches(text) == bool(re.fullmatch(pattern, text)), (pattern, text)


def drawn(rng: random.Random, depth: int) -> str:
    """Draw a pattern of the simple form."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(["a", "b", ".", "[ab]", "[^a]", "\\-", "\\w", ""])
    parts = [drawn(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    whole = rng.choice(["", "|"]).join(parts)
    return f"({whole}){rng.choice(['', '*', '+', '?', '*?'])}"


@pytest.mark.parametrize("pattern", FULL)
def test_re2_knows_all_of_its_syntax(pattern: str) -> None:
    pytest.importorskip("re2")
    texts = FULL[pattern][1]
    assert {text: LinearPattern(pattern).matches(text) for text in texts} == texts


@pytest.mark.parametrize("pattern", FULL)
def test_the_simple_form_refuses_the_others_by_name(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    said = f" has {re.escape(FULL[pattern][0])} at [0-9]+, which needs the package google-re2"
    with pytest.raises(InvalidArgumentError, match=said):
        LinearPattern(pattern)


@pytest.mark.parametrize("pattern", REFUSED)
def test_other_patterns_are_refused(pattern: str, engine: str) -> None:
    with pytest.raises(InvalidArgumentError, match="the pattern "):
        LinearPattern(pattern)


TOO_LARGE = {
    "too long": ("a" * (MOST_CHARACTERS + 1), "more than 2000 characters"),
    "nested too deeply": ("(" * 60, "at 51"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_the_simple_form_has_limits(name: str) -> None:
    pattern, said = TOO_LARGE[name]
    with pytest.raises(InvalidArgumentError, match=said):
        _SimplePattern(pattern)


def test_another_package_of_that_name_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyre2 is imported as re2 too, and falls back to Python's `re`."""
    monkeypatch.setitem(sys.modules, "re2", SimpleNamespace(compile=re.compile, error=re.error))
    assert linear_pattern._by_re2("a") is None


def test_no_pattern_goes_back_over_the_text() -> None:
    """A position is tested at most once for each character: `re` would need 2^200 tests."""
    pattern = _SimplePattern("(a*)*b")
    tested = 0

    def counted(character: str) -> bool:
        nonlocal tested
        tested += 1
        return character == "a"

    pattern._tests[0] = counted
    assert not pattern.matches("a" * 200)
    assert tested == 200
