"""`CheckedFile`: the bytes of each form, which older versions read and wrote; damage, by `read`, `hint` and
`damage`; two copies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from segstore.config import GroupConfig
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.storage.meta.checked_copy import CHECKED_COPY, CheckedCopy
from segstore.storage.meta.checked_file import CheckedFile
from segstore.storage.meta.client_quotas import QUOTAS, Entity
from segstore.storage.meta.fence import FENCE, Fence
from segstore.storage.meta.group_configs import GROUP_CONFIGS
from segstore.storage.meta.scram_credentials import SCRAM, ScramCredential
from segstore.storage.meta.sealed_file import CLUSTER_ID, PRODUCER_ID
from segstore.storage.meta.sweep_states import SWEEPS, SweepState

OFFSETS = {
    "recovery-point-offset-checkpoint": {("a", 1): 3, ("t", 0): 7},
    "replication-offset-checkpoint": {},
    "log-start-offset-checkpoint": {},
    "cleaner-offset-checkpoint": {},
}
WRITTEN: dict[str, tuple[CheckedFile[Any], Any, bytes]] = {
    "a line": (
        FENCE,
        Fence(3, 1, "d", 9, "why"),
        b'279f7d02 {"version":1,"leader_epoch":3,"leader":1,"directory_id":"d","at_ms":9,"why":"why"}\n',
    ),
    "the checkpoints": (
        CHECKED_COPY,
        CheckedCopy(9, OFFSETS, frozenset({(("b", 0), 1)})),
        b'2efc6b40 {"version":0,"nonce":9,"offsets":{'
        b'"recovery-point-offset-checkpoint":[["a",1,3],["t",0,7]],'
        b'"replication-offset-checkpoint":[],"log-start-offset-checkpoint":[],"cleaner-offset-checkpoint":[]},'
        b'"claims":[["b",0,1]]}\n',
    ),
    "a word": (CLUSTER_ID, "AAAAAAAAAAAAAAAAAAAAAg", b"1 AAAAAAAAAAAAAAAAAAAAAg d719ad05\n"),
    "a number": (PRODUCER_ID, 5000, b"1 5000 a524b1f3\n"),
    "groups": (
        GROUP_CONFIGS,
        {"g": GroupConfig.parse({"consumer.session.timeout.ms": "45000"})},
        b'{\n "version": 1,\n "groups": {\n  "g": {\n   "consumer.session.timeout.ms": 45000\n  }\n },\n'
        b' "crc32c": "825b65d4"\n}\n',
    ),
    "quotas": (
        QUOTAS,
        {Entity(None, "a"): {"producer_byte_rate": 5}},
        b'{\n "version": 1,\n "clients": {\n  "a": {\n   "producer_byte_rate": 5\n  }\n },\n'
        b' "crc32c": "b1c32ff1"\n}\n',
    ),
    "credentials": (
        SCRAM,
        {"bob": {"SCRAM-SHA-256": ScramCredential(b"salt", b"stored", b"server", 4096)}},
        b'{\n "version": 1,\n "users": {\n  "bob": {\n   "SCRAM-SHA-256": {\n    "salt": "c2FsdA==",\n'
        b'    "stored_key": "c3RvcmVk",\n    "server_key": "c2VydmVy",\n    "iterations": 4096\n   }\n  }\n'
        b' },\n "crc32c": "e92a69b4"\n}\n',
    ),
    "sweeps": (
        SWEEPS,
        {("t", 0): SweepState(5, None, 1, 2)},
        b'{\n "sweeps": [\n  [\n   "t",\n   0,\n   {\n    "swept_ms": 5,\n    "error": null,\n'
        b'    "deleted_bytes": 1,\n    "compacted_bytes": 2\n   }\n  ]\n ],\n "crc32c": "21bd56e5"\n}\n',
    ),
}
TWO_COPIES = {"groups": "groups.copy", "quotas": "quotas.copy", "credentials": "scram.copy"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".segstore").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", WRITTEN)
def test_the_bytes_of_a_form_stay_as_they_are(name: str, root: Path) -> None:
    file, value, data = WRITTEN[name]
    file.write(Files(), str(root), value)
    second = [TWO_COPIES[name]] if name in TWO_COPIES else []
    held = {path.name: path.read_bytes() for path in (root / ".segstore").iterdir()}
    assert held == dict.fromkeys([file.name, *second], data)
    assert file.read(Files(), str(root)) == file.hint(Files(), str(root)) == value
    assert file.damage(Files(), str(root)) == ""


@pytest.mark.parametrize("name", WRITTEN)
def test_a_missing_file_is_no_damage(name: str, root: Path) -> None:
    file = WRITTEN[name][0]
    assert file.read(Files(), str(root)) is file.hint(Files(), str(root)) is None
    assert file.damage(Files(), str(root)) == ""


@pytest.mark.parametrize("name", WRITTEN)
def test_each_changed_byte_is_damage(name: str, root: Path) -> None:
    file, value, data = WRITTEN[name]
    path = root / ".segstore" / file.name
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptCheckpointError):
            file.read(Files(), str(root))
        assert file.hint(Files(), str(root)) is None
        assert file.damage(Files(), str(root)) != ""
    if name in TWO_COPIES:
        (root / ".segstore" / TWO_COPIES[name]).write_bytes(data)
        assert file.read(Files(), str(root)) == value


def test_a_directory_in_the_place_of_a_file_is_damage(root: Path) -> None:
    (root / ".segstore" / SWEEPS.name).mkdir()
    assert SWEEPS.hint(Files(), str(root)) is None
    assert SWEEPS.damage(Files(), str(root)) == "Not a regular file"
