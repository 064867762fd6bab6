"""Damage of files that wait in the inbox (`.segstore/inbox`): it touches no log, nothing is adopted in part
or twice, other manifests are adopted, and one that can't be is moved to the quarantine and reported.

The rows are those of the table of staged appends in docs/reliability.md.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from places import REPOSITORY
from small_damage import DAMAGES, flip
from staging import KillingAdoption, Unsynced, begin, contents, rows, sealed_only, stage, unsynced
from stores import in_child, killed
from waiting import until

import segstore
from segstore.errors import SegstoreError, StagedFilesError
from segstore.files import Files
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import digest_of, take_result, write_result
from segstore.storage.repair import repair
from segstore.storage.staging import seal

pytestmark = pytest.mark.kind("damage")

BEFORE, N = 10, 6
MODES = ("r", "rw")


@dataclass(frozen=True)
class Row:
    """`pattern` is of the files within the inbox; `silent`: damages of which neither `check` nor
    `Store.mended` says anything. `adopted`: what the file is about is in the logs all the same.
    """

    pattern: str
    becomes: str
    silent: str = ""
    adopted: bool = False


ROWS = {
    "`inbox/sealed/S.manifest`": Row(
        "sealed/*-{damaged}-*.manifest",
        "moved to the quarantine, and its sealer gets an error; the files that it names are kept as "
        "left-overs are",
        "missing",
    ),
    "`inbox/I/N.batches` of a sealed manifest": Row(
        "{stager}/*.batches",
        "its manifest goes to the quarantine with all its files, and the sealer gets an error; a damaged "
        "base offset or epoch does not matter, since the adoption assigns both",
    ),
    "`inbox/I/owner`": Row(
        "{stager}/owner",
        "the stager counts as ended: its records are adopted; a directory goes to the quarantine",
        "missing empty cut zeroed garbage flipped",
        adopted=True,
    ),
    "`inbox/S.intent`": Row(
        "*-{damaged}-*.intent",
        "moved to the quarantine with its manifest, and the sealer gets an error; records that were "
        "appended stay. A missing one can't be noticed: records that were appended stay, and the manifest "
        "is adopted behind them",
        "missing",
    ),
    "`inbox/S.result`": Row(
        "*-{damaged}-*.result",
        "the sealer's error says that the manifest was refused, and that the reason can't be read",
        "missing empty cut zeroed garbage flipped",
    ),
}


OUTSIDE_CRC = (*range(8), *range(12, 16))
"""Bytes of a batch that an adoption writes anew: base offset and leader epoch."""


def harm(damage: str, file: Path, rng: Random) -> None:
    """As DAMAGES; of batches a bit is flipped that is not written anew."""
    if damage == "flipped" and file.suffix == ".batches":
        first = file.read_bytes()[:80]
        flip(
            file, rng.choice([at for at in range(len(first)) if at not in OUTSIDE_CRC]) * 8 + rng.randrange(8)
        )
    else:
        DAMAGES[damage](file, rng)


def table() -> str:
    """As it is in docs/reliability.md."""
    lines = [f"| file | what becomes of it | {' | '.join(DAMAGES)} |", f"|---|---|{'---|' * len(DAMAGES)}"]
    for name, row in ROWS.items():
        cells = " | ".join("–" if damage in row.silent.split() else "told" for damage in DAMAGES)
        lines.append(f"| {name} | {row.becomes} | {cells} |")
    return "\n".join(lines) + "\n"


def test_the_table_of_the_documentation_is_this_one() -> None:
    text = (REPOSITORY / "docs" / "reliability.md").read_text()
    head, end = "<!-- staged files: begin -->\n", "<!-- staged files: end -->"
    assert text[text.index(head) + len(head) : text.index(end)] == table()


# --- stores in which something waits --------------------------------------------------------------


@dataclass(frozen=True)
class Waiting:
    """A store in which "damaged" and "other" are sealed, and the stager of the first."""

    path: Path
    stager: str

    def file(self, row: Row, root: Path) -> Path:
        pattern = row.pattern.format(damaged=digest_of("damaged"), stager=self.stager)
        return sorted((root / ".segstore" / "inbox").glob(pattern))[0]


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Waiting]:
    """By how the store was left: closed, killed while it was open, or killed amid the adoption."""
    root = tmp_path_factory.mktemp("waiting")
    state = begin(root / "closed", before=BEFORE)
    with segstore.open(state, files=Unsynced()):
        live = killed(state, root / "killed")
    found = {}
    for path in (state, live):
        message = stage(path, "a", N)
        for id_, sealed in (("damaged", message), ("other", stage(path, "b", N))):
            sealed_only(path, id_, [sealed])
        found[path.name] = Waiting(path, message.files[0].stager)
    adopting = root / "adopting"
    for nth in range(1, 40):
        shutil.rmtree(adopting, ignore_errors=True)
        killed(state, adopting)
        in_child(lambda tell, nth=nth: segstore.open(adopting, files=unsynced(KillingAdoption(nth))).close())
        if list((adopting / ".segstore" / "inbox").glob("*.intent")):
            break
    found["adopting"] = Waiting(adopting, found["closed"].stager)
    return found


def left_of(name: str, rng: Random) -> str:
    return "adopting" if name == "`inbox/S.intent`" else rng.choice(["closed", "killed"])


def adopted(store: segstore.Store) -> list[list[bytes | None]]:
    """All that is in the logs once what waits is adopted or refused."""
    sealed = Path(store.path) / ".segstore" / "inbox" / "sealed"
    until(lambda: not list(sealed.glob("*.manifest")))
    return contents(store)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [name for name in ROWS if name != "`inbox/S.result`"])
def test_a_damaged_file_of_the_inbox_touches_no_log(
    store_dir: Path, waiting: dict[str, Waiting], name: str, damage: str, mode: str, rng: Random
) -> None:
    row, left = ROWS[name], left_of(name, rng)
    shutil.copytree(waiting[left].path, store_dir)
    file = waiting[left].file(row, store_dir)
    about = {str(file), str(waiting[left].file(ROWS["`inbox/sealed/S.manifest`"], store_dir))}
    before = file.read_bytes()
    harm(damage, file, rng)
    must = damage not in row.silent.split() and not (file.is_file() and file.read_bytes() == before)
    if mode == "r":
        with segstore.open(store_dir, "r") as store:
            assert [held[:BEFORE] for held in contents(store)] == [rows("before", BEFORE)] * 2
        found = {one.path for one in segstore.check(store_dir) if "adopts it" not in one.message}
        assert not must or found & about
        repair(store_dir, files=Unsynced())
    with segstore.open(store_dir, files=Unsynced()) as store:
        held = adopted(store)
        assert not must or mode == "r" or store.mended
    for values in held:
        assert values[:BEFORE] == rows("before", BEFORE)
        assert [v for v in values if v in rows("b", N)] == rows("b", N), "what waits beside it"
        once = [v for v in values if v in rows("a", N)]
        assert once in ([rows("a", N)] if row.adopted else [rows("a", N), []]), "in whole, and once"
    assert held[0][BEFORE:] == held[1][BEFORE:], "in all partitions, or in none"
    assert segstore.check(store_dir) == []
    assert [v for v in held[0] if v not in rows("before", BEFORE) + rows("a", N) + rows("b", N)] == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_result_is_a_refusal_all_the_same(tmp_path: Path, damage: str, rng: Random) -> None:
    path = begin(tmp_path / "store")
    folder, stem = Folder(Files(), str(path)), f"{1:020d}-{digest_of('one')}-{0:016x}"
    write_result(folder, stem, StagedFilesError("what was wrong"))
    file = Path(folder.result(stem))
    DAMAGES[damage](file, rng)
    if damage == "a directory":
        assert [str(file)] == [one.path for one in segstore.check(path)]
    refused = take_result(folder, stem)
    assert (refused is None) == (damage == "missing")
    assert damage == "missing" or "it was refused, and why can't be read" in str(refused)
    assert not file.exists()
    quarantine = path / ".segstore" / "quarantine"
    assert quarantine.exists() == (damage == "a directory"), "what is no file is never removed"
    assert segstore.check(path) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "a directory"])
def test_a_live_writer_tells_the_sealer_and_goes_on(tmp_path: Path, damage: str, rng: Random) -> None:
    """A staged file is damaged before it is sealed: by the sealer's own error, and in `Store.mended`."""
    path = begin(tmp_path / "store")
    with segstore.open(path, files=Unsynced()) as store:
        message = stage(path, "a", N)
        harm(damage, path / ".segstore" / "inbox" / message.files[0].stager / message.files[0].name, rng)
        with pytest.raises(SegstoreError, match=message.files[0].name):
            seal(path, "one", [message])
        assert [held[:1] for held in adopted(store)] == [[], []]
        assert any("refused, and moved to" in one.done for one in store.mended)
        assert seal(path, "one", [stage(path, "a", N)]).offsets == {("t", 1): (0, N), ("u", 0): (0, N)}


def test_a_flipped_bit_of_a_base_offset_or_epoch_is_put_right(tmp_path: Path, rng: Random) -> None:
    path = begin(tmp_path / "store", before=BEFORE)
    message = stage(path, "a", N)
    bit = rng.choice(OUTSIDE_CRC) * 8 + rng.randrange(8)
    flip(path / ".segstore" / "inbox" / message.files[0].stager / message.files[0].name, bit)
    sealed_only(path, "one", [message])
    assert {"adopts" in one.message for one in segstore.check(path)} == {True}
    with segstore.open(path, files=Unsynced()) as store:
        assert adopted(store) == [rows("before", BEFORE) + rows("a", N)] * 2
    assert segstore.check(path) == []
