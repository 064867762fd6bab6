"""Lists every kind of file of a store, the damage that may happen to it, and what then becomes of the store,
in one row for each kind.

`docs/reliability.md` has this table; `hostile/test_small_files` tests it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import segstore
from segstore.coordinator.credentials import scram_credentials
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.quotas.quotas import quotas
from segstore.server.cluster_id import cluster_id_of
from segstore.storage.meta.scram_credentials import ScramCredential
from segstore.storage.staging import Stager, seal

CONFIG = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}


@dataclass(frozen=True)
class Kind:
    """A kind of file. `pattern` finds the files. `silent` are damages that need not be reported by `check`
    and `Store.mended`, since nothing may be wrong after them. `checked` says that the file has a checksum, so
    that each flipped bit is found. `lazy` says that it is mended when it is needed, or by a repair. `refused`
    are damages with which the store can't be opened for writing until a repair. `left` says how a store was
    left that has the file.
    """

    name: str
    pattern: str
    reading: str
    writing: str
    silent: frozenset[str] = frozenset()
    checked: bool = False
    lazy: bool = False
    refused: frozenset[str] = frozenset()
    left: tuple[str, ...] = ("closed", "killed")

    def may_be_silent(self, damage: str) -> bool:
        """Return whether this damage need not be reported, since nothing is lost by it."""
        return damage in self.silent and not (damage == "flipped" and self.checked)

    def cell(self, damage: str) -> str:
        """Return the table's cell for a damage."""
        return "refused" if damage in self.refused else "–" if self.may_be_silent(damage) else "told"


def _kind(
    name: str,
    pattern: str,
    reading: str,
    writing: str,
    silent: str = "",
    checked: bool = False,
    lazy: bool = False,
    refused: tuple[str, ...] = (),
    left: tuple[str, ...] = ("closed", "killed"),
) -> Kind:
    silently = frozenset(silent.split())
    return Kind(name, pattern, reading, writing, silently, checked, lazy, frozenset(refused), left)


KINDS = [
    _kind(
        "`.segstore/topics/T.json`", ".segstore/topics/*.json", "the second copy counts",
        "made anew from the second copy; told", checked=True,
    ),
    _kind(
        "`.segstore/topics/T.copy`", ".segstore/topics/*.copy", "not looked at",
        "made anew from `T.json`; told", checked=True,
    ),
    _kind(
        "`T-N/partition.metadata`", "*-[0-9]/partition.metadata", "not looked at",
        "made anew from the topic's settings; told",
    ),
    _kind(
        "`T-N/leader-epoch-checkpoint`", "*-[0-9]/leader-epoch-checkpoint", "not looked at",
        "made anew from the batches of the log, with a new epoch at its end; told", "empty missing flipped",
    ),
    _kind(
        "`.index`, `.timeindex`", "*-[0-9]/*.*index", "made anew from the log, in memory",
        "made anew from the log when it is needed, or by `check --repair`",
        "missing empty cut zeroed garbage flipped", lazy=True,
    ),
    _kind(
        "`.snapshot`", "*-[0-9]/*.snapshot", "not looked at",
        "made anew from the log when it is needed, or by `check --repair`",
        "missing empty cut zeroed garbage flipped", lazy=True,
    ),
    _kind(
        "`.txnindex`", "*-[0-9]/*.txnindex", "not looked at",
        "made anew from the log when it is needed, or by `check --repair`",
        "missing empty cut zeroed garbage flipped", lazy=True,
    ),
    _kind(
        "`.segstore/adopted`", ".segstore/adopted", "the writer alone believes it",
        "made anew from the second copy; told", checked=True,
    ),
    _kind(
        "`.segstore/adopted.copy`", ".segstore/adopted.copy", "not looked at",
        "made anew from `adopted`; told if a line is damaged", "missing empty", checked=True,
    ),
    _kind(
        "`.segstore/quotas.json`", ".segstore/quotas.json", "the second copy counts",
        "made anew from the second copy; told", checked=True,
    ),
    _kind(
        "`.segstore/quotas.copy`", ".segstore/quotas.copy", "not looked at",
        "made anew from `quotas.json`; told", checked=True,
    ),
    _kind(
        "`.segstore/scram.json`", ".segstore/scram.json", "the second copy counts",
        "made anew from the second copy; told", checked=True,
    ),
    _kind(
        "`.segstore/scram.copy`", ".segstore/scram.copy", "not looked at",
        "made anew from `scram.json`; told", checked=True,
    ),
    _kind(
        "`.segstore/groups.json`", ".segstore/groups.json", "the second copy counts",
        "made anew from the second copy; told", checked=True,
    ),
    _kind(
        "`.segstore/groups.copy`", ".segstore/groups.copy", "not looked at",
        "made anew from `groups.json`; told", checked=True,
    ),
    _kind(
        "`.segstore/sweeps.json`", ".segstore/sweeps.json", "nothing is known of sweeps",
        "begun anew: it notes when partitions were swept, and no more; told", "missing", checked=True,
    ),
    _kind(
        "`.segstore/producer-ids`", ".segstore/producer-ids", "not looked at",
        "moved to the quarantine, told; ids go on above all that the logs know", "missing", checked=True,
    ),
    _kind(
        "`.segstore/cluster-id`", ".segstore/cluster-id", "the path of the store stands for it",
        "moved to the quarantine, told; a server tells clients a new id", "missing", checked=True,
    ),
    _kind(
        "`.segstore/ends`", ".segstore/ends",
        "a damaged slot or header is not believed: the log's own end is",
        "made anew in place, from the logs and the checkpoints; told", "missing flipped",
    ),
    _kind(
        "`.segstore/checkpoints`", ".segstore/checkpoints", "not looked at",
        "made anew from the root's checkpoints; told", "missing", checked=True,
    ),
    *(
        _kind(
            f"`{name}`", name, reading, "made anew from `.segstore/checkpoints`; told",
            "missing empty flipped",
        )
        for name, reading in (
            ("recovery-point-offset-checkpoint", "not looked at"),
            ("replication-offset-checkpoint", "not looked at"),
            (
                "log-start-offset-checkpoint",
                "`.segstore/checkpoints` counts; the text alone if that says nothing",
            ),
            ("cleaner-offset-checkpoint", "if it says nothing, no gap is called damage"),
        )
    ),
    _kind(
        "`.kafka_cleanshutdown`", ".kafka_cleanshutdown", "the store is read as after a kill",
        "taken for an unclean shutdown: every partition is recovered from its log; told", "missing flipped",
        left=("closed",),
    ),
    _kind(
        "`.lock`", ".lock", "not looked at",
        "any content does; a directory is refused by an error that says to move it away, until "
        "`check --repair` has moved it to the quarantine",
        "missing empty cut zeroed garbage flipped", refused=("a directory",),
    ),
]  # fmt: skip

ROWS = {kind.name: kind for kind in KINDS}


def table() -> str:
    """Return the table as it is in docs/reliability.md."""
    lines = [f"| file | opened to read | opened to write | {' | '.join(DAMAGES)} |"]
    lines.append(f"|---|---|---|{'---|' * len(DAMAGES)}")
    for kind in KINDS:
        told = " | ".join(map(kind.cell, DAMAGES))
        lines.append(f"| {kind.name} | {kind.reading} | {kind.writing} | {told} |")
    return "\n".join(lines) + "\n"


# --- damage -------------------------------------------------------------------------------


def _directory(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").write_text("of somebody")


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def _flipped(path: Path, rng: random.Random) -> None:
    if path.stat().st_size:
        flip(path, rng.randrange(path.stat().st_size * 8))


def used_bits(path: Path) -> list[int]:
    """Return every bit of a small file; of a file that is mostly zeros the bits of each 64 bytes that are not
    all zeros, such as a slot of the published ends, or a few entries of a preallocated index.
    """
    data = path.read_bytes()
    places = range(0, len(data), 64)
    used = [at for at in places if len(data) < 4096 or any(data[at : at + 64])]
    return [bit for at in used for bit in range(at * 8, min(at + 64, len(data)) * 8)]


def _cut(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(1, len(data))] if len(data) > 1 else b"")


DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "missing": lambda path, rng: path.unlink(),
    "empty": lambda path, rng: path.write_bytes(b""),
    "cut": _cut,
    "zeroed": lambda path, rng: path.write_bytes(bytes(path.stat().st_size)),
    "garbage": lambda path, rng: path.write_bytes(rng.randbytes(path.stat().st_size or 24)),
    "flipped": _flipped,
    "a directory": _directory,
}


# --- a store that has everything ------------------------------------------------------------


def make(root: Path) -> tuple[Path, Path]:
    """Make a store, and return it as a clean close leaves it, and as a kill leaves it."""
    clean, killed = root / "clean", root / "killed"
    with segstore.open(clean, config=CONFIG) as store:
        small = {"segment.bytes": 600, "index.interval.bytes": 100}
        store.create_topic("plain", 2, small)
        store.create_topic(
            "kept", 1, {**small, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
        )
        store.create_topic("txn", 1, small)
        for number in (0, 1):
            for n in range(30):
                store.partition("plain", number).append(b"%d %d" % (number, n) * 10, key=b"k")
        for n in range(40):
            store.partition("kept").append(b"%d" % n * 20, key=b"%d" % (n % 3))
        store.sweep()
        with segstore.Producer(store, transactional_id="x") as producer:
            producer.init_transactions()
            for n in range(6):
                producer.begin_transaction()
                for m in range(3):
                    producer.send("txn", b"%d %d" % (n, m) * 20)
                producer.flush()
                producer.abort_transaction() if n % 2 else producer.commit_transaction()
        with segstore.Consumer(store, group_id="g") as consumer:
            places = [segstore.TopicPartition("plain", n) for n in (0, 1)]
            consumer.assign(places)
            consumer.commit({place: segstore.OffsetAndMetadata(7, "here", -1) for place in places})
        quotas(store).alter("somebody", {"producer_byte_rate": 1 << 40})
        credential = ScramCredential(b"salt", b"stored", b"server", 4096)
        scram_credentials(store).alter({("somebody", "SCRAM-SHA-256"): credential})
        group_settings(store).alter("g", {"consumer.session.timeout.ms": 50_000})
        cluster_id_of(store)  # which is made by the first server
        with Stager(clean) as stager:
            stager.append_batch("plain", 0, [b"staged"] * 5)
            message = stager.finish()
        seal(clean, "an id", [message])
    with segstore.open(clean, config=CONFIG) as store:
        store.partition("plain", 1).append(b"last", key=b"k")
        store.partition("kept").append(b"last", key=b"k")
        shutil.copytree(clean, killed)
    return clean, killed
