"""Every parser, on the corpus, on inputs that failed once, and on some thousands of mutated ones.

`make fuzz` does the same for minutes, under the sanitizers. tests/hostile/fuzz says how.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from faulty.counts import record
from fuzz import batches, differ, loop
from fuzz.shrink import shrunk
from fuzz.target import Target
from fuzz.targets import CORPUS, TARGETS, corpus
from oracle import Batch, Record, encode_batch, encode_records, encode_varint, with_crc
from places import environment

from segstore.records.header import CODECS

pytestmark = pytest.mark.kind("fuzz")

FEW = {"batches": 1500, "messages": 1500, "store": 40, "published ends": 300, "wire": 80}
USUAL = 2000
MIB = 1 << 20


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What is wrong with an input is told by an exception; logs of thousands are of no use."""
    caplog.set_level(logging.CRITICAL, "segstore")


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_give_a_result_or_a_named_error(name: str, seed: int, tmp_path: Path) -> None:
    inputs = FEW.get(name, USUAL) + len(corpus(name)) + len(TARGETS[name].seeds())
    command = [
        sys.executable,
        "-m",
        "fuzz.run",
        "--target",
        name,
        "--seed",
        str(seed),
        "--inputs",
        str(inputs),
    ]
    command += ["--child", "400", "--current", str(tmp_path / "current")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=500)
    held = loop.Current.get(tmp_path / "current")[:2000]
    assert done.returncode == 0, f"{done.stderr}\n{name}, seed {seed}, input {held!r}"
    assert json.loads(done.stdout)["inputs"] >= inputs
    record("fuzz: parsers")
    record("fuzz: inputs", inputs)
    if name == "batches":
        record("fuzz: batches read by two decoders", inputs)


def test_the_corpus_is_small_and_of_known_targets() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert files
    assert sum(path.stat().st_size for path in files) < 200_000
    assert {path.parent.name for path in files} <= {name.replace(" ", "-") for name in TARGETS}


# --- what failed once -----------------------------------------------------------------------------


def line(body: bytes) -> bytes:
    return TARGETS["adopted ids"].fixed(body + b"\n")


HEAD = TARGETS["published ends"].seeds()[0]
NO_INTENT = "CorruptCheckpointError: root/.segstore/inbox/"
FOUND = {
    "ends: the count of changes is the largest int64": (
        "published ends", HEAD[:24] + (2**63 - 1).to_bytes(8, "little") + HEAD[32:], "False, 3 of 3"),
    "ends: the sequence is the largest int64, and odd": (
        "published ends", (2**63 - 1).to_bytes(8, "little") + HEAD[8:], "False, 0 of 3"),
    "partition.metadata: a version of 5,000 digits": (
        "partition.metadata", b"version: " + b"9" * 5000 + b"\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg",
        "CorruptCheckpointError: input, line _: not the lines "),
    "producer ids: a number of 5,000 digits": (
        "producer ids", TARGETS["producer ids"].fixed(b"1 " + b"9" * 5000 + b" 0\n"), "none"),
    "adopted ids: the id is a number": ("adopted ids", line(b'x {"id":7,"ms":1,"offsets":[]}'), "False, 0"),
    "adopted ids: the time is text": (
        "adopted ids", line(b'x {"id":"q/7","ms":"1","offsets":[]}'), "False, 0"),
    "adopted ids: an offset is text": (
        "adopted ids", line(b'x {"id":"q/7","ms":1,"offsets":[["t",0,0,"9"]]}'), "False, 0"),
    "intent: the id is a list": (
        "intent", line(b'x {"id":[],"places":[]}'), NO_INTENT),
    "intent: a negative position": (
        "intent", line(b'x {"id":"q","places":[["t","",0,0,-1,0]]}'), NO_INTENT),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_failed_once(name: str) -> None:
    target, data, outcome = FOUND[name]
    assert TARGETS[target].outcome(data).startswith(outcome)


# --- batches with something odd -------------------------------------------------------------------


ONE = Record(10, 1000, b"k", b"v", [])
BASE = Batch(10, 4, 0, 3, 1000, 2000, 7, 1, 5, [ONE])


def with_delta(delta: int) -> bytes:
    """A record whose offset delta is this, whatever that means."""
    body = b"\0" + encode_varint(0) + encode_varint(delta) + encode_varint(-1) * 2 + encode_varint(0)
    return encode_batch(BASE, encode_varint(len(body)) + body, 1)


def with_field(name: str, number: int) -> bytes:
    at, size = batches.FIELDS[name]
    data = encode_batch(BASE)
    return with_crc(data[:at] + number.to_bytes(size, "big", signed=True) + data[at + size :])


ODD = {
    "an offset delta of 2^31 - 1": (with_delta(2**31 - 1), "decode, 0 records"),
    "an offset delta beyond int32, which wraps to 0": (with_delta(2**32 >> 1 << 1), "whole, 1 records"),
    "a negative offset delta": (with_delta(-1), "decode, 0 records"),
    "timestamps out of order": (
        encode_batch(replace(BASE, records=[ONE, Record(11, -5, None, None, [])])), "whole, 2 records"),
    "no records, but a producer's state": (encode_batch(replace(BASE, records=[])), "whole, 0 records"),
    "a control batch": (encode_batch(replace(BASE, attributes=0x30)), "whole, 1 records"),
    "a count of more than there are bytes for": (with_field("count", 2), "scan, 0 records"),
    "a count of one less": (with_field("count", 0), "decode, 0 records"),
    "a count of 2^31 - 1": (with_field("count", 2**31 - 1), "scan, 0 records"),
    "a negative count": (with_field("count", -1), "scan, 0 records"),
    "a length of 2^31 - 1": (with_field("length", 2**31 - 1), "scan, 0 records"),
    "a length just short of 2^31": (with_field("length", 2**31 - 13), "short, 0 records"),
    "a length below a header's": (with_field("length", 48), "scan, 0 records"),
    "the last offset is 2^63 - 1": (with_field("base offset", 2**63 - 4), "scan, 0 records"),
    "the last offset is 2^63 - 2": (with_field("base offset", 2**63 - 5), "whole, 1 records"),
    "a negative base offset": (with_field("base offset", -1), "scan, 0 records"),
    "an unknown codec": (with_field("attributes", 7), "decode, 0 records"),
    "a payload that is no gzip": (
        encode_batch(replace(BASE, attributes=1), b"\0" * 30, 1), "decode, 0 records"),
    "trailing bytes": (encode_batch(BASE, encode_records(BASE) + b"\0"), "decode, 0 records"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_both_decoders_say_the_same_of(name: str) -> None:
    data, outcome = ODD[name]
    assert differ.compare(data) == outcome


BOMB = """
import resource, sys
from fuzz import batches
from segstore.errors import CorruptRecordError
from segstore.records.decode import decode, scan
data = sys.stdin.buffer.read()
headers, end = scan(data)
assert len(headers) == 1, end
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decode(data, headers, "input")
except CorruptRecordError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error.reason)
"""

LIES = {
    "snappy that says 4 GiB": (2, b"\xff\xff\xff\xff\x0f" + b"a" * 40),
    "snappy block that says 2 GiB": (2, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + b"\x7f\xff\xff\xff" + b"a" * 40),
    "lz4 that says 2^62": (3, b"\x04\x22\x4d\x18\x68\x40" + (1 << 62).to_bytes(8, "little") + b"\0" * 20),
    "zstd that says 2^60": (4, b"\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little") + b"\1\0\0" * 9),
    "zstd with a window of 2^41": (4, b"\x28\xb5\x2f\xfd\x00\xf8" + b"\1\0\0" * 9),
    "gzip that says 4 GiB": (1, batches.compressed_bytes(1, b"a" * 100)[:-4] + b"\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("name", [*CODECS[1:], *LIES])
def test_memory_for_what_a_batch_says_to_become_is_bounded(name: str) -> None:
    """512 MiB from a batch of a few hundred KiB at most: read up to the limit, and refused by name."""
    if name in LIES:
        codec, payload = LIES[name]
        data, most = encode_batch(replace(BASE, attributes=codec), payload, 1), 150 * MIB
    else:
        data, most = batches.bomb(CODECS.index(name)), 700 * MIB
    done = subprocess.run(
        [sys.executable, "-c", BOMB], input=data, capture_output=True, env=environment(), check=True
    )
    grown, _, reason = done.stdout.decode().partition(" ")
    assert int(grown) * 1024 < most, f"{int(grown) >> 10} MiB"
    assert reason.startswith((name, name.split()[0]))


# --- the fuzzer itself ----------------------------------------------------------------------------


def test_a_decoder_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = differ.plain

    def wrong(data: bytes) -> differ.Read:
        read = plain(data)
        return read._replace(records=[r._replace(timestamp=r.timestamp + 1) for r in read.records])

    monkeypatch.setattr(differ, "plain", wrong)
    with pytest.raises(AssertionError, match="records differ"):
        differ.compare(encode_batch(BASE))


def test_a_failure_is_told_and_made_small() -> None:
    def picky(data: bytes) -> str:
        if b"\x07" in data and len(data) > 3:
            raise IndexError(len(data))
        return "good"

    target = Target(picky, lambda: [bytes(range(200))])
    why = loop.failure(target, bytes(range(200)))
    assert why is not None
    assert why.startswith("IndexError at test_fuzz.py:")
    assert shrunk(bytes(range(200)), lambda less: loop.failure(target, less) == why) == b"\x07\0\0\0"


def test_an_input_that_takes_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SECONDS", 0.05)
    before = signal.getsignal(signal.SIGALRM)
    loop.limit_time()

    def endless(data: bytes) -> str:
        while True:
            pass

    try:
        assert (loop.failure(Target(endless, list), b"") or "").startswith("Hang")
    finally:
        signal.signal(signal.SIGALRM, before)
