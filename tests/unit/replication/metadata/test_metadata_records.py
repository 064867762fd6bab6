"""Promise: metadata records are Kafka's, byte for byte, and what is not known is refused, not guessed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import kafka_tools
import pytest

import segstore
from segstore.errors import CorruptRecordError, SegstoreError, UnsupportedVersionError
from segstore.replication.metadata.metadata_log import MetadataLog, Voter
from segstore.replication.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    decode,
    encode,
)
from segstore.storage.store.writer import StoreWriter

A, B, C = (letter + "A" * 21 for letter in "QgB")
UUID_A = b"\x40" + b"\0" * 15
UUID_B = b"\x80" + b"\0" * 15

RECORDS: list[MetadataRecord] = [
    RegisterBrokerRecord(3, A, 77, False, True, "rack", (B, C)),
    RegisterBrokerRecord(0, A, 0, True, False, None, (B,)),
    UnregisterBrokerRecord(3, 77),
    BrokerRegistrationChangeRecord(3, 77, -1, 0, ()),
    BrokerRegistrationChangeRecord(3, 77, 1, 1, (B,)),
    TopicRecord("naïve", A),
    PartitionRecord(5, A, (2, 1, 0), (2, 1), (0,), (3,), 2, 9, 14, 1, (A, B, C), (0,), (1,)),
    PartitionRecord(5, A, (1,), (1,), (), (), 1, 0, 0, 0, (A,)),
    PartitionChangeRecord(5, A),
    PartitionChangeRecord(5, A, (), -1, (1, 2), (1,), (2,), 1, (1,), (2,), (A, B)),
    RemoveTopicRecord(A),
    ConfigRecord(2, "t", "min.insync.replicas", "2"),
    ConfigRecord(4, "", "unclean.leader.election.enable", None),
    FeatureLevelRecord("metadata.version", 27),
    NoOpRecord(),
]

GOLDEN = {
    NoOpRecord(): b"\1\x14\0\0",
    TopicRecord("tt", A): b"\1\2\0\3tt" + UUID_A + b"\0",
    RemoveTopicRecord(B): b"\1\x09\0" + UUID_B + b"\0",
    FeatureLevelRecord("f", 258): b"\1\x0c\0\2f\1\2\0",
    ConfigRecord(2, "t", "n", None): b"\1\4\0\2\2t\2n\0\0",
    UnregisterBrokerRecord(3, 77): b"\1\1\0\0\0\0\3" + b"\0\0\0\0\0\0\0\x4d" + b"\0",
    RegisterBrokerRecord(3, A, 77, False, True, "r", (B,)): (
        b"\1\0\3\0\0\0\3\0" + UUID_A + b"\0\0\0\0\0\0\0\x4d\1\1\2r\0\1\1\0\x11\2" + UUID_B
    ),
    BrokerRegistrationChangeRecord(3, 77, -1, 1): (b"\1\x11\2\0\0\0\3\0\0\0\0\0\0\0\x4d\2\0\1\xff\1\1\1"),
    PartitionChangeRecord(5, A, (2,), -1, directories=(B,)): (
        b"\1\5\2\0\0\0\5" + UUID_A + b"\3\0\5\2\0\0\0\2\1\4\xff\xff\xff\xff\x08\x11\2" + UUID_B
    ),
    PartitionRecord(5, A, (2,), (2,), (), (), 2, 9, 14, 1, (B,), (7,)): (
        b"\1\3\2\0\0\0\5"
        + UUID_A
        + b"\2\0\0\0\2\2\0\0\0\2\1\1\0\0\0\2\0\0\0\x09\0\0\0\x0e\2"
        + UUID_B
        + b"\2\0\1\1\1\5\2\0\0\0\7"
    ),
}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_what_was_encoded_is_decoded(record: MetadataRecord) -> None:
    assert decode(encode(record)) == record


@pytest.mark.parametrize("record", GOLDEN, ids=lambda record: type(record).__name__)
def test_the_bytes_are_those_of_kafkas_schemas(record: MetadataRecord) -> None:
    assert encode(record) == GOLDEN[record]


def test_older_versions_are_read() -> None:
    old = b"\1\0\0\0\0\0\3" + UUID_A + b"\0\0\0\0\0\0\0\x4d\1\1\0\1\0"
    assert decode(old) == RegisterBrokerRecord(3, A, 77)


def test_newer_versions_of_a_known_message_are_read() -> None:
    """Of Kafka 4.4, with directories that take no new partitions."""
    tags = b"\2\0\x11\2" + UUID_B + b"\1\x11\2" + UUID_A
    newer = b"\1\0\4\0\0\0\3\0" + UUID_A + b"\0\0\0\0\0\0\0\x4d\1\1\0\0\1" + tags
    assert decode(newer) == RegisterBrokerRecord(3, A, 77, False, True, None, (B,))
    change = b"\1\x11\3\0\0\0\3\0\0\0\0\0\0\0\x4d\1\3\x11\2" + UUID_B
    assert decode(change) == BrokerRegistrationChangeRecord(3, 77)


def test_a_field_with_an_unknown_tag_is_passed_over() -> None:
    assert decode(b"\1\x14\0\1\x63\3xyz") == NoOpRecord()


def test_end_points_and_features_of_a_broker_are_passed_over() -> None:
    body = b"\2\3PL\2h\x23\x84\0\0\0" + b"\2\2f\0\1\0\2\0"
    kafkas = b"\1\0\3\0\0\0\3\0" + UUID_A + b"\0\0\0\0\0\0\0\x4d" + body + b"\0\1\0\0"
    assert decode(kafkas) == RegisterBrokerRecord(3, A, 77)


@pytest.mark.parametrize("data", [b"\1\x1b\0\0", b"\1\x7f\0\0", b"\1\x14\1\0", b"\1\5\3", b"\0\x14\0\0"])
def test_what_is_not_known_is_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedVersionError, match="frame version"):
        decode(data)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_cut_or_longer_bytes_are_no_record(record: MetadataRecord) -> None:
    data = encode(record)
    for end in range(len(data)):
        with pytest.raises(CorruptRecordError):
            decode(data[:end])
    with pytest.raises(CorruptRecordError, match="left behind"):
        decode(data + b"\0")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_damaged_bytes_raise_errors_of_ours(record: MetadataRecord) -> None:
    data = encode(record)
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            try:
                decode(bytes(damaged))
            except SegstoreError:
                continue


# --- Kafka's own reader --------------------------------------------------------------------------


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Path]:
    """The path of a metadata log that holds all of RECORDS."""
    store = segstore.open(tmp_path / "s")
    assert isinstance(store.engine, StoreWriter)
    log = MetadataLog.open([Voter(0, store.engine)], 1)
    log.append(RECORDS)
    log.close()
    store.close()
    yield tmp_path / "s" / "__cluster_metadata-0" / "00000000000000000000.log"
    assert segstore.check(tmp_path / "s") == []


@pytest.mark.kind("programs")
@pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not()))
def test_kafkas_dump_tool_reads_the_log(logged: Path) -> None:
    java = ["java", "-Xmx512m", "-cp", kafka_tools.classpath(), kafka_tools.DUMP_TOOL]
    options = ["--cluster-metadata-decoder", "--files", str(logged)]
    run = subprocess.run([*java, *options], capture_output=True, encoding="utf-8", timeout=240)
    assert run.returncode == 0, run.stderr
    payloads = [line.split(" payload: ", 1)[1] for line in run.stdout.splitlines() if " payload: " in line]
    assert len(payloads) == len(RECORDS) + 1
    for payload, record in zip(payloads[1:], RECORDS, strict=True):
        kind = re.sub("(?!^)(?=[A-Z])", "_", type(record).__name__).upper()
        assert f'{{"type":"{kind}","version":{record.VERSION},' in payload
    # The names of fields differ in case between releases.
    changed, registered = payloads[10].lower(), payloads[1]
    assert '"isr":[],"leader":-1,"replicas":[1,2],"removingreplicas":[1],"addingreplicas":[2]' in changed
    assert '"eligibleleaderreplicas":[1],"lastknownelr":[2]' in changed
    assert f'"incarnationId":"{A}","brokerEpoch":77' in registered
    assert f'"logDirs":["{B}","{C}"]' in registered
