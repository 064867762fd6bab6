"""Fuzzes the parsers of the small files beside the logs: checkpoints, snapshots, settings, the inbox."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from crc32c import crc32c
from partitions import GOLDEN

from fuzz.mutate import ANY, TEXT, entries
from fuzz.target import Given, Target
from segstore import names
from segstore.storage.inbox import adopted_ids, intent, manifest
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.meta import (
    clean_shutdown,
    client_quotas,
    framed,
    offset_checkpoints,
    sealed_file,
    sweep_states,
    topic_info,
)
from segstore.storage.producers.producer_state import ProducerState, SnapshotEntry, format_snapshot

_STEM = names.manifest_stem(3, "0" * 16, "1" * 16)


def again(parse: Callable[[bytes, str], Any], form: Callable[[Any], bytes]) -> Callable[[bytes], str]:
    """What was taken is written so that the same is taken again."""

    def run(data: bytes) -> str:
        found = parse(data, "input")
        assert parse(form(found), "input") == found
        return f"{min(len(found), 3)} of them" if hasattr(found, "__len__") else "taken"

    return run


def topic_settings(data: bytes) -> str:
    held, _ = topic_info.parse_settings("t", data, "input")
    info, deleting = held
    again = topic_info.parse_settings("t", topic_info.format_settings(info, deleting=deleting), "")
    assert again == (held, True)
    return f"{deleting}, {info.gapped}, {min(info.partitions, 3)}"


def snapshot(data: bytes) -> str:
    state = ProducerState.load(data, 100, "input")
    assert sorted(ProducerState.load(state.dump(), 100).entries()) == sorted(state.entries())
    return f"{min(len(state.producers), 3)}, {state.first_unstable_offset is None}"


def _snapshot_fixed(data: bytes) -> bytes:
    return struct.pack(">hI", 1, crc32c(data[6:])) + data[6:]


def marker(data: bytes) -> str:
    found = clean_shutdown.read_marker(Given(data), "root")
    return "none of ours" if not found else "a number"


def sweeps(data: bytes) -> str:
    found = sweep_states.read_states(Given(data), "root")
    for state in found.values():
        json.dumps(state).encode()
    return f"{min(len(found), 3)}"


def producer_id(data: bytes) -> str:
    found = sealed_file.PRODUCER_ID.hint(Given(data), "root")
    return "none" if found is None else "one"


def _producer_id_fixed(data: bytes) -> bytes:
    line = data.rpartition(b" ")[0]
    return line + b" %08x\n" % zlib.crc32(line)


# --- the inbox ------------------------------------------------------------------------------------


def sealed(data: bytes) -> str:
    found = manifest.read_manifest(Folder(Given(data), "root"), _STEM)
    assert all(StagedFile.parse(list(file)) == file for file in found.files)
    return f"{min(len(found.files), 3)} files"


def begun(data: bytes) -> str:
    return f"{min(len(intent.read_intent(Folder(Given(data), 'root'), _STEM).places), 3)} places"


class _Refused(Folder):
    def unlink(self, path: str) -> None:
        pass


def refused(data: bytes) -> str:
    return type(manifest.take_result(_Refused(Given(data), "root"), _STEM)).__name__


def adopted(data: bytes) -> str:
    """Lines that are damaged count for nothing, for whoever reads them."""
    held = adopted_ids.AdoptedIds(_Kept(data), "input", 1000, 10)
    adopted_ids.read_adoption(Given(data), "input", "q/7")
    adopted_ids.read_newest(Given(data), "input", "q")
    adopted_ids.damaged_lines(Given(data), "input")
    left = adopted_ids.within(data, {("t", 0): 10})
    assert adopted_ids.damaged_lines(Given(left), "input") == 0
    held.record(adopted_ids.Adoption("new", 5, {("t", 0): (1, 2)}))
    return f"{held.find('q/7') is not None}, {min(len(left.splitlines()), 3)}"


class _Kept(Given):
    """What is written goes nowhere."""

    def inode(self, file: object) -> int:
        return 1

    def links(self, path: object) -> int:
        return 1

    def unlink(self, path: object) -> None:
        pass

    def write_atomic(self, path: object, data: object, *, sync: bool = True) -> None:
        pass

    def open(self, path: object, *, write: bool = False, create: bool = False) -> Any:
        return contextlib.nullcontext()

    def pwrite(self, handle: object, data: Any, position: int) -> int:
        return len(data)

    def sync(self, handle: object) -> None:
        pass


def _framed(data: bytes) -> bytes:
    """Each line with the CRC of what it holds."""
    lines = [line.partition(b" ")[2] or line for line in data.split(b"\n") if line]
    return b"".join(b"%08x %s\n" % (crc32c(line), line) for line in lines)


# --- sound ones -----------------------------------------------------------------------------------


def _golden(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(GOLDEN.glob(f"clean/*/{name}"))]


def _snapshots() -> list[bytes]:
    made = [SnapshotEntry(i, 2, 10, 90 + i, 3, 1000, 1, 80 if i % 2 else -1) for i in range(4)]
    return [*_golden("*.snapshot"), format_snapshot(made)]


def _settings() -> list[bytes]:
    config = {"cleanup.policy": "compact,delete", "retention.ms": 5, "min.cleanable.dirty.ratio": 0.5}
    held = {"version": 1, "topic_id": names.new_topic_id(), "partitions": 2, "config": config}
    more = {**held, "partition_ids": [1, 4], "compacted": [[1, 900]], "deleting": True, "config": {}}
    return [json.dumps(each, indent=1).encode() + b"\n" for each in (held, more)]


def _staged() -> list[bytes]:
    row = ["a" * 32, "00000001.batches", "t", "", 0, 1, 10, 700, 5, "boot", False]
    other = [*row[:1], "00000002.batches", *row[2:]]
    kept = [{"version": 2, "id": "q/7", "files": rows} for rows in ([], [row], [row, other])]
    return [framed.frame(held) for held in (*kept, {**kept[1], "version": 3, "source": "offsets up to 7"})]


def _intents() -> list[bytes]:
    place = ["t", "id", 0, 0, 100, 7]
    return [framed.frame({"id": "q/7", "places": places}) for places in ([], [place], [place] * 3)]


def _results() -> list[bytes]:
    told = [("StorageError", [28, "No space", "/x"]), ("StagedFilesError", ["why"]), ("Other", [1])]
    return [framed.frame({"error": kind, "arguments": arguments}) for kind, arguments in told]


def _adoptions() -> list[bytes]:
    lines = [{"id": f"q/{n}", "ms": n, "offsets": [["t", 0, n, n + 1], ["u", 1, 5, 9]]} for n in range(9)]
    lines.append({**lines[-1], "id": "q/9", "others": 1, "source": "offsets up to 9"})
    return [b"".join(map(framed.frame, lines[:n])) for n in (0, 1, 10)]


def _given(*data: bytes) -> Callable[[], list[bytes]]:
    return partial(list, data)


OFFSETS = b"0\n3\nt 0 5\nt 1 9223372036854775807\na.b-c_d 12 0\n"
EPOCHS = b"0\n3\n0 0\n4 100\n2147483647 500\n"
METADATA = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg"
QUOTAS = (
    b'{"version": 1, "clients": {"<default>": {"producer_byte_rate": 5}, "a": {"consumer_byte_rate": 9}}}'
)
SWEEPS = b'[["t", 0, {"swept_ms": 5, "error": null, "deleted_bytes": 1}], ["u", 1, {"error": "no"}]]\n'

TARGETS = {
    "offset checkpoint": Target(
        again(offset_checkpoints.parse_offsets, offset_checkpoints.format_offsets),
        _given(OFFSETS, b"", b"0\n0\n"),
        TEXT,
    ),
    "leader epochs": Target(
        again(offset_checkpoints.parse_leader_epochs, offset_checkpoints.format_leader_epochs),
        lambda: [EPOCHS, *_golden("leader-epoch-checkpoint")],
        TEXT,
    ),
    "partition.metadata": Target(
        again(names.parse_partition_metadata, names.partition_metadata),
        lambda: [METADATA, *_golden("partition.metadata")],
        TEXT,
    ),
    "clean shutdown": Target(marker, _given(b'{"version":0,"brokerEpoch":77}', b""), TEXT),
    "producer snapshot": Target(snapshot, _snapshots, (entries("qhiqiqiq", 10), *ANY), _snapshot_fixed),
    "topic settings": Target(topic_settings, _settings, TEXT),
    "client quotas": Target(
        lambda data: str(len(client_quotas.QUOTAS.parse(data, "input")[0])), _given(QUOTAS), TEXT
    ),
    "sweeps": Target(sweeps, _given(SWEEPS), TEXT),
    "producer ids": Target(producer_id, _given(b"1 5000 deadbeef\n"), TEXT, _producer_id_fixed),
    "manifest": Target(sealed, _staged, TEXT, _framed),
    "intent": Target(begun, _intents, TEXT, _framed),
    "result": Target(refused, _results, TEXT, _framed),
    "adopted ids": Target(adopted, _adoptions, TEXT, _framed),
}
