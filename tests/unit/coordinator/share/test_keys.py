"""The text of a share partition's name (rule Q49)."""

from __future__ import annotations

import pytest

from segstore.coordinator.java_hash import java_hash
from segstore.coordinator.share.keys import ShareKey, parse_share_key
from segstore.errors import InvalidRequestError

ID = "05Bhr3ZRRKCyjzzLKPEyWg"
TEXTS = {
    "a plain group": ShareKey("g", ID, 0),
    "a group with colons": ShareKey("a:b", ID, 7),
    "a group of a colon": ShareKey(":", ID, 7),
    "a group that looks like a key": ShareKey(f"g:{ID}:1", ID, 2),
    "the last partition": ShareKey("g", ID, 2**31 - 1),
    "not ASCII": ShareKey("grüppe", ID, 1),
}


@pytest.mark.parametrize("name", TEXTS)
def test_q49_a_key_is_read_from_its_end(name: str) -> None:
    assert parse_share_key(str(TEXTS[name])) == TEXTS[name]
    assert str(TEXTS[name]).startswith(f"{TEXTS[name].group}:{ID}:")


OTHERS = ["", "gz", ID, f"{ID}:0", f":{ID}:0", f"g:{ID}:", f"g:{ID}:-1", f"g:{ID}:x", f"g:{ID}:²"]
OTHERS += [f"g:{ID}:{2**31}", "g:short:0", f"g:{'A' * 22}:0", f"g:{ID}x:0", f"g:{ID}: 1"]


@pytest.mark.parametrize("text", OTHERS)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="GROUP:TOPIC_ID:PARTITION"):
        parse_share_key(text)


def test_the_hash_is_javas_of_the_text() -> None:
    assert java_hash(str(ShareKey("a:b", ID, 0))) == java_hash(f"a:b:{ID}:0")
