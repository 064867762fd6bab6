"""An id of staged records stands for one piece of work: the same again succeeds, other work is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from staging import begin, contents, left_in_inbox, quarantined, rows, sealed_only, stage

import segstore
from segstore import errors
from segstore.files import Files
from segstore.names import RESULT
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import take_result, write_manifest
from segstore.storage.staging import Staged, seal

CONFLICTS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "more records": ({"n": 20}, {"n": 30}, True),
    "fewer records": ({"n": 20}, {"n": 10}, True),
    "records, of an id that had none": ({"n": 0}, {"n": 10}, True),
    "no records": ({"n": 20}, {"n": 0}, False),
    "as many records of another source": (
        {"n": 20, "source": "0 to 20"},
        {"n": 20, "source": "0 to 30"},
        True,
    ),
    "fewer records of the same source": (
        {"n": 20, "source": "0 to 20"},
        {"n": 10, "source": "0 to 20"},
        False,
    ),
    "as many records of an unknown source": ({"n": 20, "source": "0 to 20"}, {"n": 20}, False),
    "as many records, of an id without a source": ({"n": 20}, {"n": 20, "source": "0 to 20"}, False),
    "fewer records of an unknown source": ({"n": 20, "source": "0 to 20"}, {"n": 10}, True),
}


def offered(path: Path, tag: str, n: int, source: str = "") -> tuple[list[Staged], dict[str, str]]:
    return [stage(path, tag, n)] if n else [], {"source": source} if source else {}


@pytest.mark.parametrize("name", CONFLICTS)
def test_an_id_stands_for_one_piece_of_work(store_dir: Path, name: str) -> None:
    """Other records under the id of those that were adopted were dropped without a word."""
    first, again, conflict = CONFLICTS[name]
    begin(store_dir)
    messages, source = offered(store_dir, "a", **first)
    done = seal(store_dir, "one", messages, **source)
    messages, source = offered(store_dir, "b", **again)
    if conflict:
        with pytest.raises(errors.IdempotencyConflictError) as raised:
            seal(store_dir, "one", messages, **source)
        assert "'one' is in the log since 20" in str(raised.value)
        for each in (first, again):
            of = f" of {each['source']}" if "source" in each else ""
            assert f"{2 * each['n']} records{of}" in str(raised.value)
        assert seal(store_dir, "two", messages).records == 2 * again["n"]  # they are still there
    else:
        assert seal(store_dir, "one", messages, **source) == done
    held = rows("a", first["n"]) + (rows("b", again["n"]) if conflict else [])
    with segstore.open(store_dir, "r") as reader:
        assert contents(reader) == [held] * 2
    assert left_in_inbox(store_dir) == []


def test_two_sealers_give_one_id_to_different_work(store_dir: Path) -> None:
    """The one that comes second to the writer is refused; its files are in the quarantine."""
    begin(store_dir)
    for tag, n in (("a", 20), ("a", 20), ("b", 30)):
        sealed_only(store_dir, "one", [stage(store_dir, tag, n)])
    with segstore.open(store_dir) as store:
        assert contents(store) == [rows("a", 20)] * 2
    assert len(quarantined(store_dir)) == 3  # two files, and the manifest
    folder = Folder(Files(), str(store_dir))
    told = [take_result(folder, stem) for stem in folder.of_kind(RESULT)]
    assert [type(each) for each in told] == [errors.IdempotencyConflictError]
    assert segstore.check(store_dir) == []


def test_the_source_of_an_id_is_kept_with_it(store_dir: Path) -> None:
    """Also by an open that finds it sealed, and by the file that is written anew."""
    begin(store_dir)
    message = stage(store_dir, "a")
    write_manifest(Folder(Files(), str(store_dir)), "q/1", message.files, "offsets up to 20")
    with segstore.open(store_dir, config={"inbox.ids.retention.count": 2}):
        for n in range(200):
            seal(store_dir, f"other {n}", [])
    done = seal(store_dir, "q/1", [])
    assert (done.source, done.records) == ("offsets up to 20", 40)
    with pytest.raises(errors.IdempotencyConflictError, match="of offsets up to 21 came under this id now"):
        seal(store_dir, "q/1", [stage(store_dir, "b")], source="offsets up to 21")
