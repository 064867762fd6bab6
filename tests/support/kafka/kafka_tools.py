"""Lets Apache Kafka's own dump tool, DumpLogSegments, judge log directories; and runs its console tools
against a server (`console`).

Maven resolves them from tests/support/kafka/kafka/pom.xml, which alone says the version, offline where it
can; .cache/kafka keeps the class path.
The tool prints a line per batch, record and index entry. Every line that has none of these forms counts as an
error, so that an unforeseen complaint is an error too.

The tool creates a missing .index beside a .timeindex: give it a copy where that matters.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from places import REPOSITORY

POM = Path(__file__).parent / "kafka" / "pom.xml"
POM_4_1 = Path(__file__).parent / "kafka_4_1" / "pom.xml"
"""The second judge, for tests of what Kafka has changed since: groups of KIP-848 are assigned at once, as
here, and begin in epoch 1 (KIP-1263 came with 4.4).
"""
POM_4_3 = Path(__file__).parent / "kafka_4_3" / "pom.xml"
"""Version 4.3.1, which knows share groups, but no dead letter queues."""
OLD_POM = Path(__file__).parent / "old_kafka" / "pom.xml"
"""Version 2.8.2, whose broker still writes messages of magic 0 and 1."""
VERSION = POM.read_text().partition("<version>1</version>")[2].partition("<version>")[2].partition("<")[0]
DUMP_TOOL = "org.apache.kafka.tools.DumpLogSegments"
DUMP_TOOLS = dict.fromkeys((POM_4_1, OLD_POM), "kafka.tools.DumpLogSegments")
"""The tool's class in the versions that have it elsewhere."""
CACHE = REPOSITORY / ".cache" / "kafka"
JUDGED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

_BATCH = re.compile(
    r"baseOffset: (?P<baseOffset>\d+) lastOffset: (?P<lastOffset>\d+) count: (?P<count>\S+)"
    r" baseSequence: (?P<baseSequence>\S+) lastSequence: (?P<lastSequence>\S+)"
    r" producerId: (?P<producerId>\S+) producerEpoch: (?P<producerEpoch>\S+)"
    r" partitionLeaderEpoch: (?P<partitionLeaderEpoch>\S+) isTransactional: (?P<isTransactional>\S+)"
    r" isControl: (?P<isControl>\S+)(?: deleteHorizonMs: (?P<deleteHorizonMs>\S+))?"
    r" position: (?P<position>\d+) (?P<timestampType>\w+): (?P<timestamp>-?\d+) size: (?P<size>\d+)"
    r" magic: (?P<magic>\d+) compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+) isvalid: (?P<isvalid>\w+)$"
)
_MESSAGE_BATCH = re.compile(
    r"offset: (?P<lastOffset>\d+) position: (?P<position>\d+) (?P<timestampType>\w+): (?P<timestamp>-?\d+)"
    r" size: (?P<size>\d+) magic: (?P<magic>[01]) compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+)"
    r" isvalid: (?P<isvalid>\w+)$"
)
"""A message or a wrapper, of magic 0 or 1."""
_MESSAGE = re.compile(
    r"\| offset: (?P<offset>\d+) (?P<timestampType>\w+): (?P<timestamp>-?\d+) keySize: (?P<keySize>-?\d+)"
    r" valueSize: (?P<valueSize>-?\d+) isValid: (?P<isvalid>\w+) crc: (?P<crc>\d+)}?"
    r"(?: key: (?P<key>.*?))?(?: payload: (?P<payload>.*))?$"
)
_RECORD_OF_2_8 = re.compile(
    r"\| offset: (?P<offset>\d+) isValid: (?P<isvalid>\w+) crc: \S+ keySize: (?P<keySize>-?\d+)"
    r" valueSize: (?P<valueSize>-?\d+) (?P<timestampType>\w+): (?P<timestamp>-?\d+) baseOffset: \d+ .*?"
    r" magic: \d+ compressType: \w+ position: \d+"
    r"(?: sequence: -?\d+ headerKeys: \[.*?\]| crc: \d+ isvalid: \w+)"
    r"(?: key: (?P<key>.*?))?(?: payload: (?P<payload>.*))?$"
)
_RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) (?P<timestampType>\w+): (?P<timestamp>-?\d+) keySize: (?P<keySize>-?\d+)"
    r" valueSize: (?P<valueSize>-?\d+) sequence: (?P<sequence>-?\d+) headerKeys: \[(?P<headerKeys>.*?)\]"
    r"(?: endTxnMarker: (?P<endTxnMarker>\w+) coordinatorEpoch: (?P<coordinatorEpoch>-?\d+))?"
    r"(?: key: (?P<key>.*?))?(?: payload: (?P<payload>.*))?$"
)
_INDEX_ENTRY = re.compile(r"offset: (?P<offset>\d+) position: (?P<position>\d+)$")
_TIME_ENTRY = re.compile(r"timestamp: (?P<timestamp>-?\d+) offset: (?P<offset>\d+)$")
_ABORTED = re.compile(
    r"version: (?P<version>\d+) producerId: (?P<producerId>\d+) firstOffset: (?P<firstOffset>\d+)"
    r" lastOffset: (?P<lastOffset>\d+) lastStableOffset: (?P<lastStableOffset>\d+)$"
)
_PRODUCER = re.compile(
    r"producerId: (?P<producerId>\d+) producerEpoch: (?P<producerEpoch>\S+)"
    r" coordinatorEpoch: (?P<coordinatorEpoch>\S+) currentTxnFirstOffset: (?P<currentTxnFirstOffset>\S+)"
    r" lastTimestamp: (?P<lastTimestamp>\S+)(?: firstSequence: (?P<firstSequence>\S+)"
    r" lastSequence: (?P<lastSequence>\S+) lastOffset: (?P<lastOffset>\S+)"
    r" offsetDelta: (?P<offsetDelta>\S+) timestamp: (?P<timestamp>\S+))?\s*$"
)
_LINES = (
    ("batches", _BATCH),
    ("batches", _MESSAGE_BATCH),
    ("records", _RECORD),
    ("records", _MESSAGE),
    ("records", _RECORD_OF_2_8),
    ("index", _INDEX_ENTRY),
    ("time_index", _TIME_ENTRY),
    ("aborted", _ABORTED),
    ("producers", _PRODUCER),
)
_GAP = re.compile(r"  (\d+) is followed by (\d+)$")
_NOISE = re.compile(r"SLF4J: |WARNING: |(?:Log s|S)tarting offset: \d+$|  -1 is followed by \d+$|$")
"""The tool of 4.4 also tells the first offset of a file, unless it is 0, as one that follows -1."""
_INVALID = re.compile(r"isvalid: false$| isValid: false crc: ")

Fields = dict[str, object]


@dataclass
class FileDump:
    """What the tool read in one file; field names are those of the tool, numbers are int."""

    batches: list[Fields] = field(default_factory=list)
    records: list[Fields] = field(default_factory=list)
    index: list[Fields] = field(default_factory=list)
    time_index: list[Fields] = field(default_factory=list)
    aborted: list[Fields] = field(default_factory=list)
    producers: list[Fields] = field(default_factory=list)
    empty: bool = False
    sane: bool = False


@dataclass
class Dump:
    """All files of one run; `gaps` are pairs of offsets between which there are no records (compaction makes
    them).
    """

    files: dict[Path, FileDump] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def batches(self, partition: Path) -> list[Fields]:
        return [batch for file in self._logs(partition) for batch in file.batches]

    def records(self, partition: Path) -> list[Fields]:
        """Return all records in order of offset, also those of control batches (which have an
        `endTxnMarker`).
        """
        return [record for file in self._logs(partition) for record in file.records]

    def indexes(self, partition: Path) -> dict[str, FileDump]:
        """Return the offset and time indexes by file name."""
        mine = [p for p in self.files if p.parent == partition and p.suffix in (".index", ".timeindex")]
        return {path.name: self.files[path] for path in mine}

    def _logs(self, partition: Path) -> list[FileDump]:
        return [self.files[p] for p in sorted(self.files) if p.parent == partition and p.suffix == ".log"]


def why_not() -> str | None:
    """Return the reason why the judge can't be called here; None where it can."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    return f"Kafka's dump tool needs {' and '.join(missing)}" if missing else None


@lru_cache(maxsize=4)
def classpath(pom: Path = POM) -> str:
    """Return the class path of the tool, or of what another pom.xml names. Raises RuntimeError with Maven's
    output where it can't be resolved.
    """
    kept = CACHE / f"classpath-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}.txt"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the processes of a test run share the cache
        there = kept.is_file() and all(Path(jar).is_file() for jar in kept.read_text().split(":"))
        if not there and _maven(pom, kept, "--offline") and (why := _maven(pom, kept)):
            raise RuntimeError(f"Maven can't resolve {pom}:\n{why}")
    return kept.read_text().strip()


def judge(*partitions: Path, contents: bool = False, pom: Path = POM) -> Dump:
    """Dump every file of some partitions, and run a broker's start-up checks of their indexes.

    `errors` is empty where Kafka finds nothing wrong. With `contents` records have `key` and
    `payload` as text. `pom` names the version of the tool.
    """
    files = sorted(p for path in partitions for p in path.iterdir() if p.suffix in JUDGED)
    dump = dump_log(files, contents=contents, pom=pom)
    indexes = [p for p in files if p.suffix in (".index", ".timeindex")]
    checked = dump_log(indexes, index_sanity=True, pom=pom)
    dump.errors += checked.errors
    for file, found in checked.files.items():
        known = dump.files.setdefault(file, FileDump())
        known.sane, known.empty = found.sane, found.empty
    return dump


def dump_log(
    files: Iterable[Path],
    *,
    deep: bool = True,
    index_sanity: bool = False,
    contents: bool = False,
    decoder: str = "",
    pom: Path = POM,
) -> Dump:
    """Run the tool once over many files. With `index_sanity` index entries are checked but not listed; with
    `decoder`, "share-group-state" or another one of the tool's, records have `key` and `payload` as it shows
    them.
    """
    names = ",".join(map(str, files))
    if not names:
        return Dump()
    options = ["--deep-iteration"] * deep + ["--index-sanity-check"] * index_sanity
    options += ["--print-data-log"] * contents + [f"--{decoder}-decoder"] * bool(decoder)
    java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    java += ["-Dfile.encoding=UTF-8", "-Dsun.stdout.encoding=UTF-8", "-cp", classpath(pom)]
    run = subprocess.run(
        [*java, DUMP_TOOLS.get(pom, DUMP_TOOL), *options, "--files", names],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=240,
    )
    dump = parse(run.stdout, run.stderr)
    if run.returncode:
        dump.errors.append(f"the dump tool ended with {run.returncode}")
    return dump


def console(tool: str, bootstrap_servers: str, *arguments: str) -> str:
    """Run one of Kafka's console tools, by its class, against a server; return what it prints. Fails where it
    ends with an error.
    """
    return run(tool, "--bootstrap-server", bootstrap_servers, *arguments)


def run(tool: str, *arguments: str) -> str:
    """Run a program of Kafka's, by its class; return what it prints. Fails where it ends with an error."""
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath()]
    done = subprocess.run(
        ["java", *options, tool, *arguments],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=240,
    )
    assert done.returncode == 0, f"{tool} {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def parse(stdout: str, stderr: str) -> Dump:
    """Return the tool's output as fields and errors."""
    dump = Dump()
    current = FileDump()
    # splitlines() would also split at other line ends, which values may have.
    for line in stdout.split("\n"):
        if line.startswith("Dumping "):
            current = dump.files.setdefault(Path(line.removeprefix("Dumping ")), FileDump())
        elif line.endswith(" is empty."):
            current.empty = True
        elif line.endswith(" passed sanity check."):
            current.sane = True
        elif not (_NOISE.match(line) or _take(line, current)) or _INVALID.search(line):
            dump.errors.append(line)
    _parse_errors(stderr, dump)
    return dump


def _take(line: str, current: FileDump) -> bool:
    for name, form in _LINES:
        if match := form.match(line):
            getattr(current, name).append({k: _value(k, v) for k, v in match.groupdict().items()})
            return True
    return False


def _parse_errors(stderr: str, dump: Dump) -> None:
    for line in stderr.split("\n"):
        if match := _GAP.match(line):
            dump.gaps.append((int(match[1]), int(match[2])))
        elif not line.startswith("Non-consecutive offsets in ") and not _NOISE.match(line):
            dump.errors.append(line)


def _value(name: str, text: str | None) -> object:
    if text is None or text == "OptionalLong.empty":
        return None
    if name == "headerKeys":
        return text.split(",") if text else []
    if name in ("key", "payload"):
        return text
    if text in ("true", "false"):
        return text == "true"
    number = text.removeprefix("OptionalLong[").removesuffix("]")
    return int(number) if number.lstrip("-").isdigit() else text


def _maven(pom: Path, kept: Path, *options: str) -> str:
    """Write the class path to `kept`. Return Maven's output where it fails, else ""."""
    fresh = kept.with_suffix(".new")
    command = ["mvn", *options, "-q", "-B", "-f", str(pom)]
    run = subprocess.run(
        [*command, "dependency:build-classpath", f"-Dmdep.outputFile={fresh}"],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=600,
    )
    if run.returncode or not fresh.is_file():
        return run.stdout + run.stderr or "no class path was written"
    fresh.replace(kept)
    return ""
