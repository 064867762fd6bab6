"""Make segstore/protocol/messages.json.gz from the definitions in Kafka's own jar.

usage: python tools/kafka_messages.py KAFKA_CLIENTS_JAR

The jar is `org.apache.kafka:kafka-clients:4.1.0` of Maven Central (Apache License 2.0). What is kept of a
definition is what its bytes depend on.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "segstore" / "protocol" / "messages.json.gz"
FOLDER = "common/message/"
LEFT_OUT = re.compile(
    r"Share|Streams|Telemetry|DelegationToken|Raft|Snapshot|Registration|Controller|Broker|Vote|QuorumEpoch"
    r"|Envelope|UpdateMetadata|LeaderAndIsr|StopReplica|Assign|AllocateProducer|AlterPartition(?!Reassign)|Voter"
    r"|UpdateFeatures|Subscription|Assignment|DefaultPrincipal|KRaft|LeaderChange"
    r"|CreateAcls|DeleteAcls|EndTxnMarker|WriteTxnMarkers|PushTel|ControlledShutdown"
)
KEPT = re.compile(r"(BrokerRegistration|BeginQuorumEpoch|UnregisterBroker)(Request|Response)")
"""What a standby and its primary tell each other, of what is left out else."""
MESSAGE_KEYS = ("apiKey", "type", "name", "validVersions", "flexibleVersions", "latestVersionUnstable")
FIELD_KEYS = ("name", "type", "versions", "nullableVersions", "taggedVersions", "tag", "default")


def definitions(jar: Path) -> list[dict[str, Any]]:
    """Return the stripped definitions of requests, responses and headers, by name."""
    found = []
    with zipfile.ZipFile(jar) as archive:
        for name in sorted(archive.namelist()):
            short = name.removeprefix(FOLDER).removesuffix(".json")
            wanted = KEPT.fullmatch(short) or not LEFT_OUT.search(short)
            if name.startswith(FOLDER) and name.endswith(".json") and wanted:
                text = re.sub(r"(?m)^\s*//.*$", "", archive.read(name).decode())
                message = json.loads(text)
                if message["type"] in ("request", "response", "header"):
                    found.append(_message(message))
    return found


def _message(message: dict[str, Any]) -> dict[str, Any]:
    kept = {key: message[key] for key in MESSAGE_KEYS if key in message}
    kept["fields"] = [_field(field) for field in message.get("fields", [])]
    structs = message.get("commonStructs", [])
    if structs:
        kept["commonStructs"] = [
            {"name": each["name"], "fields": [_field(field) for field in each["fields"]]} for each in structs
        ]
    return kept


def _field(field: dict[str, Any]) -> dict[str, Any]:
    kept = {key: field[key] for key in FIELD_KEYS if key in field}
    if "fields" in field:
        kept["fields"] = [_field(each) for each in field["fields"]]
    return kept


def packed(messages: list[dict[str, Any]]) -> bytes:
    """Return the bytes of the data file; equal definitions give equal bytes."""
    return gzip.compress(json.dumps(messages, separators=(",", ":"), sort_keys=True).encode(), mtime=0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    made = definitions(Path(sys.argv[1]))
    TARGET.write_bytes(packed(made))
    sys.stdout.write(f"{len(made)} messages, {TARGET.stat().st_size} bytes: {TARGET}\n")
