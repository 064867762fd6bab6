"""Promise: Kafka's tools print of a server what they print of a broker of Kafka 4.4; what is not served ends
with an error that says so, and nothing waits for ever.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_broker import Broker
from kafka_tools import classpath, why_not
from refused_tool_cases import REFUSED, Refused
from tool_cases import COMPARED, FILES, NO_SERVER, SERVED, Case
from tool_runner import Outcome, ToolRunner, tool_runner

import segstore

confluent_kafka = pytest.importorskip(
    "confluent_kafka", reason="a transaction that stays open needs a client"
)
pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),
    pytest.mark.kind("Java's clients"),
]
TOOLS = "org.apache.kafka.tools."
MORE = """\
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
"""
ALIKE = dict.fromkeys(
    (
        *("offsets.topic.num.partitions", "transaction.state.log.num.partitions"),
        "share.coordinator.state.topic.num.partitions",
    ),
    1,
)
LEAST = {
    "all settings of a topic": 26,
    "all settings of a broker": 80,
    "all settings of a group": 2,
    "versions of APIs": 70,
}
OTHERWISE: dict[str, Iterable[str]] = {
    "all settings of a topic": {"retention.ms"},
    "all settings of a group": (),
    "versions of APIs": map(str, [27, 30, 31, *range(38, 42), 57, 80, 81, 88, 89, 93, 94]),
    "all settings of a broker": {
        *("listeners", "listener.security.protocol.map", "sasl.enabled.mechanisms"),
        *("offsets.topic.num.partitions", "transaction.state.log.num.partitions"),
        "share.coordinator.state.topic.num.partitions",
        "share.coordinator.state.topic.min.isr",
        *("ssl.keystore.type", "ssl.truststore.type"),
        *("ssl.keystore.certificate.chain", "ssl.truststore.certificates"),
    },
}
"""Settings with another default; those of listeners, which the broker's properties set; certificates, which
Kafka takes for secrets; APIs that are not served.
"""
ELSEWHERE = {
    "ReplicaVerificationTool": "test_java_tools.py, as it never ends",
    "LogCompactionTester": "test_java_tools.py",
    "ConnectPluginPath": "asks no server",
    "JmxTool": "asks no server",
    "OAuthCompatibilityTool": "asks a server of tokens",
}
"""Tools that are not called here, and where they are, or why not."""


class Side:
    """A server, with the tools that are run against it."""

    def __init__(self, runner: ToolRunner, address: str, logs: Path, files: Path) -> None:
        self.runner, self.address, self.logs, self.files = runner, address, logs, files
        files.mkdir()
        for name, text in FILES.items():
            (files / name).write_text(text.replace("AT", address))
        settings = {"bootstrap.servers": address, "transactional.id": "open"}
        self.open = confluent_kafka.Producer(settings | {"transaction.timeout.ms": 900_000})

    def run(self, case: Case | Refused) -> Outcome:
        words = case.arguments
        for word, meant in (("FILES", self.files), ("LOGS", self.logs), ("AT", self.address)):
            words = re.sub(rf"\b{word}\b", str(meant), words)
        server = case.tool not in NO_SERVER and self.address not in words
        arguments = ["--bootstrap-server", self.address] * server + shlex.split(words)
        text = case.text if isinstance(case, Case) else ""
        return self.runner.call(f"{TOOLS}{case.tool}", *arguments, text=text)

    def served(self) -> dict[str, Any]:
        """Return how each of SERVED and COMPARED ends, and what it shows."""
        self.open.init_transactions()
        self.open.begin_transaction()
        self.open.produce("txn", b"open")
        self.open.flush()
        return {name: self._shown(case, self.run(case)) for name, case in (SERVED | COMPARED).items()}

    def _shown(self, case: Case, outcome: Outcome) -> Any:
        host, _, port = self.address.rpartition(":")
        shown = [outcome.out, outcome.err]
        for place, word in ((self.address, "AT"), (str(self.logs), "LOGS")):
            shown = [each.replace(place, word) for each in shown]
        shown = [re.sub(rf"{host} {port} *", "AT ", each) for each in shown]
        return outcome.code, case.view("\n".join(shown))


class Heard(logging.Handler):
    """Keeps what a server complains of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """How calls end with a broker, and with a server; how those of REFUSED end with a server; and its log."""
    base, heard = tmp_path_factory.mktemp("tools"), Heard()
    broker = Broker(classpath(), base / "broker", more=MORE)
    logging.getLogger("segstore").addHandler(heard)
    with (
        tool_runner() as runner,
        segstore.open(base / "store", config=ALIKE) as store,
        segstore.serve(store, port=0, group_initial_rebalance_delay_ms=0) as server,
    ):
        with broker.running() as address:
            theirs = Side(runner, address, broker.logs, base / "their-files").served()
        mine = Side(runner, server.bootstrap_servers, Path(store.path), base / "our-files")
        ours = mine.served()
        refused = {name: mine.run(case) for name, case in REFUSED.items()}
    logging.getLogger("segstore").removeHandler(heard)
    assert segstore.check(base / "store") == []
    return theirs, ours, refused, heard.records


@pytest.mark.parametrize("name", SERVED)
def test_a_tool_prints_the_same(sides: Any, name: str) -> None:
    theirs, ours, *_ = sides
    assert ours[name] == theirs[name]
    code, shown = ours[name]
    assert code is not None, f"it did not end: {shown}"


@pytest.mark.parametrize("name", COMPARED)
def test_what_both_have_is_told_alike(sides: Any, name: str) -> None:
    (_, theirs), (_, ours) = sides[0][name], sides[1][name]
    common = theirs.keys() & ours.keys()
    assert len(common) >= LEAST[name]
    assert {each for each in common if theirs[each] != ours[each]} == {*OTHERWISE[name]}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_ends_with_an_error(sides: Any, name: str) -> None:
    outcome, case = sides[2][name], REFUSED[name]
    assert outcome.code == case.code, outcome
    assert re.search(case.message, outcome.out + outcome.err), outcome


def test_every_tool_is_called() -> None:
    called = {case.tool for case in (SERVED | COMPARED | REFUSED).values()}
    assert called | ELSEWHERE.keys() == set(programs())
    assert not called & ELSEWHERE.keys()


def programs() -> Iterator[str]:
    """Yield the classes of the tools' jar that have a method `main`."""
    for jar in classpath().split(os.pathsep):
        if Path(jar).name.startswith("kafka-tools-4"):
            with zipfile.ZipFile(jar) as archive:
                for name in archive.namelist():
                    data = archive.read(name)
                    if "$" not in name and b"\4main" in data and b"([Ljava/lang/String;)V" in data:
                        yield name.removesuffix(".class").partition("kafka/tools/")[2].replace("/", ".")


def test_the_server_complains_of_nothing(sides: Any) -> None:
    assert sides[3] == []
