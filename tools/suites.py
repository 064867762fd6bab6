"""Runs the suites of other projects against a broker of Apache Kafka and against `segstore serve`, and
writes what came of it into docs/serve.md, between its markers.

usage: python tools/suites.py [--only SUITE] [--against kafka|segstore] [--sources FOLDER] [--tests ID]

librdkafka's suite comes with the crate rdkafka-sys, which cargo fetches. The others are in no registry:
FOLDER has clones of their repositories (work trees or bare ones) by the names of SUITES. What is fetched
and built lies in build/suites. All options but --sources may be given many times. `--tests` runs some tests
alone, and writes no table. A test that fails with segstore alone and has no reason in REASONS makes the run
fail.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import kafka_tools
from client_settings import between, row
from kafka_broker import Broker, free_port
from waiting import PATIENCE

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "serve.md"
HOME = ROOT / "build" / "suites"
CRATE = "rdkafka-sys"
CRATE_VERSION = "4.10.0+2.12.1"
SECONDS = 900
"""The longest that one test of librdkafka may take on a busy machine."""

Results = dict[str, tuple[str, str]]
"""By test: "passed", "failed" or "skipped", and why."""

TRANSACTIONS = """\
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
"""


class Suite(NamedTuple):
    """Tests of one project."""

    version: str
    partitions: int
    """`num.partitions` of the servers."""
    run: Callable[[str, Sequence[str]], Results]
    """Runs tests (all where none is named) against the server at an address."""


_NO_AUTHORIZER = "ACLs can't be created: neither Kafka's broker nor segstore has an authorizer here"
REASONS = {
    "0077_compaction": "Kafka's own tool refuses the `segment.bytes` that the test asks for (KIP-1030)",
    "0081_admin": f"{_NO_AUTHORIZER}; its parts on topics, groups and offsets pass",
    "0109_auto_create_topics": _NO_AUTHORIZER,
    "0115_producer_auth": _NO_AUTHORIZER,
    "0119_consumer_auth": _NO_AUTHORIZER,
    "test_admin_integration::test_create_describe_delete_acls": _NO_AUTHORIZER,
    "test_admin_integration::test_create_partitions": "it assigns replicas to node 0, and the node is 1",
    "test_consumer_integration::test_group": "its session timeout of 3 s is below the 6 s that brokers allow",
    "test_basic_operations::test_basic_operations": _NO_AUTHORIZER,
    "test_describe_operations::test_describe_operations[sasl_cluster0]": "it starts a cluster of its own",
}
"""Why tests fail with segstore."""


# --- servers --------------------------------------------------------------------------------------


@contextlib.contextmanager
def kafka(directory: Path, partitions: int) -> Iterator[str]:
    more = f"{TRANSACTIONS}num.partitions={partitions}\n"
    with Broker(kafka_tools.classpath(), directory, more=more).running() as address:
        yield address


@contextlib.contextmanager
def segstore(directory: Path, partitions: int) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    settings = {"num.partitions": partitions, "group.initial.rebalance.delay.ms": 0}
    made = [f"--set={name}={value}" for name, value in settings.items()]
    command = [
        sys.executable,
        "-m",
        "segstore",
        "serve",
        "--store",
        str(directory),
        "--listen",
        address,
        *made,
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            if "listens" not in (line := server.stdout.readline()):
                raise SystemExit(f"the server did not start: {line}")
            yield address
        finally:
            server.terminate()
            server.wait(PATIENCE)


SERVERS = {"kafka": kafka, "segstore": segstore}


# --- librdkafka -----------------------------------------------------------------------------------

_ROW = re.compile(r"\|\S* *(\d{4}_\w+) *\| *(PASSED|FAILED|SKIPPED) ")
_FAILED = re.compile(r'### Test "([^"]+)" failed at .*\n(.*)')


def librdkafka(address: str, wanted: Sequence[str]) -> Results:
    tests = _built_librdkafka() / "tests"
    (tests / "test.conf").write_text(f"metadata.broker.list={address}\ntest.timeout.multiplier=3\n")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": "../src:../src-cpp",
        "TEST_KAFKA_VERSION": kafka_tools.VERSION,
        "KAFKA_PATH": str(_kafka_scripts()),
        "BROKERS": address,
    }
    found: Results = {}
    for number in wanted or _numbers(tests):
        found.update(_one_of_librdkafka(tests, number, environment))
    return found


def _numbers(tests: Path) -> list[str]:
    """Return the numbers of the tests that need a broker; a human must watch those that are manual."""
    lines = (tests / "test.c").read_text().splitlines()
    wanted = (line for line in lines if "TEST_F_LOCAL" not in line and "TEST_F_MANUAL" not in line)
    named = (re.match(r" +_TEST\((\d{4})_", line) for line in wanted)
    return sorted({match[1] for match in named if match})


def _one_of_librdkafka(tests: Path, number: str, environment: Mapping[str, str]) -> Results:
    try:
        done = subprocess.run(
            ["./test-runner", "-Q", "-p1"], cwd=tests, env={**environment, "TESTS": number}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {number: ("failed", f"it did not end in {SECONDS} s")}
    (HOME / f"librdkafka-{number}.log").write_text(done.stdout)
    found = {name: (outcome.lower(), "") for name, outcome in _ROW.findall(done.stdout)}
    for name, why in _FAILED.findall(done.stdout):
        if not name.startswith("<MAIN>"):
            found[name.split(" ")[0]] = ("failed", why)
    if done.returncode and not any(outcome == "failed" for outcome, _ in found.values()):
        found[number] = ("failed", f"it ended with {done.returncode}")
    return found


def _built_librdkafka() -> Path:
    target = HOME / "librdkafka"
    if (target / "tests" / "test-runner").is_file():
        return target
    project = HOME / "crate"
    if not (project / "Cargo.toml").is_file():
        _do("cargo", "init", "--quiet", "--vcs", "none", "--name", "suites", project)
    _do("cargo", "add", "--quiet", f"{CRATE}@{CRATE_VERSION.partition('+')[0]}", cwd=project)
    _do("cargo", "vendor", "--quiet", "vendor", cwd=project)
    shutil.copytree(project / "vendor" / CRATE / "librdkafka", target, dirs_exist_ok=True)
    # Its tests of transactions ask for three replicas, which a cluster of one node refuses.
    transactions = target / "tests" / "0103-transactions.c"
    transactions.write_text(transactions.read_text().replace(", 3, 5000", ", -1, 5000"))
    _do("bash", "./configure", "--disable-gssapi", "--disable-curl", cwd=target)
    _do("make", "-j2", "libs", cwd=target)
    _do("make", "-j2", "build", cwd=target / "tests")
    return target


def _kafka_scripts() -> Path:
    """Return a folder with the scripts of Kafka that tests call."""
    home = HOME / "kafka"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for name, tool in (
        ("kafka-topics.sh", "org.apache.kafka.tools.TopicCommand"),
        ("kafka-configs.sh", "org.apache.kafka.tools.ConfigCommand"),
        ("kafka-acls.sh", "org.apache.kafka.tools.AclCommand"),
    ):
        script = home / "bin" / name
        script.write_text(f'#!/bin/sh\nexec java -cp "{kafka_tools.classpath()}" {tool} "$@"\n')
        script.chmod(0o755)
    return home


# --- suites that pytest runs ----------------------------------------------------------------------

_PACKAGES = {
    "kafka-python": ["pytest", "pytest-timeout"],
    "aiokafka": [
        *("aiokafka==0.14.0", "kafka-python", "pytest", "pytest-timeout", "pytest-asyncio>=1.3"),
        "pytest-mock",
        *("docker", "async-timeout", "cramjam"),
    ],
    "confluent-kafka-python": [
        *("confluent-kafka[avro,json,protobuf,schemaregistry,rules]==2.15.0", "pytest", "pytest-timeout"),
        *("pytest-asyncio", "async-timeout", "tests/trivup/trivup-0.14.0.tar.gz"),
    ],
}
_AIOKAFKA_FIXTURES = """


@pytest.fixture(scope="session")
def docker():
    return None


@pytest.fixture(scope="session")
def ssl_folder():
    return None


@pytest.fixture(scope="class")
def acl_manager():
    return None


@pytest.fixture(scope="class")
def kafka_config():
    return None


@pytest.fixture(scope="class")
def kerberos_utils():
    return None


@pytest.fixture(scope="session")
def kafka_server():
    host, _, port = os.environ["KAFKA"].rpartition(":")
    yield KafkaServer(host, int(port), 0, 0, 0, None)
"""


def kafka_python(address: str, wanted: Sequence[str]) -> Results:
    tree = _tree("kafka-python")
    (tree / "servers" / kafka_tools.VERSION / "kafka-bin").mkdir(parents=True, exist_ok=True)
    files = [f"test/integration/test_{name}_integration.py" for name in ("admin", "consumer", "producer")]
    # This one waits for ever for a broker of Kafka too.
    options = ["--timeout=300", "-k", "not offsets_for_times_errors"]
    environment = {"KAFKA_VERSION": kafka_tools.VERSION, "KAFKA_URI": f"kafka://{address}"}
    return _pytest("kafka-python", tree, [*(wanted or files), *options], environment)


def aiokafka(address: str, wanted: Sequence[str]) -> Results:
    tree = _tree("aiokafka")
    shutil.rmtree(tree / "aiokafka", ignore_errors=True)  # the wheel's is tested, whose C is built
    with open(tree / "tests" / "conftest.py", "r+") as conftest:
        if _AIOKAFKA_FIXTURES not in conftest.read():
            conftest.write(_AIOKAFKA_FIXTURES)
    kinds = ("producer", "consumer", "client", "admin", "coordinator", "fetcher")
    files = [f"tests/test_{name}.py" for name in (*kinds, "transactional_producer", "transactional_consumer")]
    options = [
        f"--docker-image=x/kafka:2.13_{kafka_tools.VERSION}",
        "-o",
        "asyncio_default_fixture_loop_scope=function",
        "--no-pull",
        "--timeout=300",
        "-k",
        "not ssl and not sasl",
    ]
    return _pytest("aiokafka", tree, [*(wanted or files), *options], {"KAFKA": address})


def confluent_kafka_python(address: str, wanted: Sequence[str]) -> Results:
    tree = _tree("confluent-kafka-python")
    shutil.rmtree(tree / "src", ignore_errors=True)
    folders = [f"tests/integration/{name}" for name in ("producer", "admin", "consumer")]
    return _pytest(
        "confluent-kafka-python", tree, [*(wanted or folders), "--timeout=300"], {"BROKERS": address}
    )


def _tree(name: str) -> Path:
    """Return a work tree of our own of a suite's repository."""
    target = HOME / name
    if not target.is_dir():
        source = _SOURCES / name
        if not source.exists():
            raise SystemExit(f"--sources: there is no clone {source}")
        _do("git", "clone", "--quiet", source, target)
    return target


def _python(name: str, tree: Path) -> Path:
    """Return the Python of an environment with the packages that a suite needs."""
    home = HOME / f"venv-{name}"
    python = home / "bin" / "python"
    if not (home / "installed").is_file():
        venv.create(home, with_pip=True)
        _do(python, "-m", "pip", "install", "-q", *_PACKAGES[name], cwd=tree)
        (home / "installed").touch()
    return python


def _pytest(name: str, tree: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> Results:
    report = HOME / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [_python(name, tree), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with open(HOME / f"{name}.log", "w") as log:
        subprocess.run(
            [*command, *arguments],
            cwd=tree,
            env={**clean, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    if not report.is_file():
        raise SystemExit(f"{name}: pytest wrote no report; its words are in {log.name}")
    return dict(_outcome(case) for case in ElementTree.parse(report).iter("testcase"))


def _outcome(case: ElementTree.Element) -> tuple[str, tuple[str, str]]:
    name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(kind)
        if found is not None:
            return name, (outcome, (found.get("message") or "").partition("\n")[0])
    return name, ("passed", "")


def _do(*command: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run(list(map(str, command)), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(
            f"{command[0]} ended with {done.returncode}:\n{done.stdout.decode(errors='replace')}"
        )


SUITES = {
    "librdkafka": Suite("2.12.1", 4, librdkafka),
    "kafka-python": Suite("3.0.12 and later", 4, kafka_python),
    "aiokafka": Suite("0.14.0", 2, aiokafka),
    "confluent-kafka-python": Suite("2.15.0", 4, confluent_kafka_python),
}
_SOURCES = HOME


# --- the table ------------------------------------------------------------------------------------


HEADINGS = ("segstore", "fails with segstore alone")


def table(results: Mapping[str, Mapping[str, Results]]) -> str:
    """Return what is written into the page: counts, and each test that fails with segstore."""
    lines = [
        row("suite", f"Kafka {kafka_tools.VERSION}: passed, failed, skipped", *HEADINGS),
        "|---|---|---|---|",
    ]
    for name, by_server in results.items():
        counts = [_counts(by_server.get(server, {})) for server in SERVERS]
        alone = ", ".join(f"`{test}`" for test in alone_failing(by_server)) or "none"
        if len(by_server) < len(SERVERS):
            alone = "not known"
        lines.append(row(f"{name} {SUITES[name].version}", *counts, alone))
    told: dict[str, list[str]] = {}
    for test in _failing(results):
        told.setdefault(REASONS.get(test, "not explained yet"), []).append(f"`{test}`")
    whys = [f"- {', '.join(tests)}: {why}." for why, tests in told.items()]
    return "\n".join([*lines, *([""] if whys else []), *whys])


def _counts(found: Results) -> str:
    count = Counter(outcome for outcome, _ in found.values())
    return ", ".join(str(count[each]) for each in ("passed", "failed", "skipped")) if found else "not run"


def _failing(results: Mapping[str, Mapping[str, Results]]) -> list[str]:
    every = (by_server.get("segstore", {}) for by_server in results.values())
    return [test for found in every for test, (outcome, _) in sorted(found.items()) if outcome == "failed"]


def alone_failing(by_server: Mapping[str, Results]) -> list[str]:
    """Return the tests that fail with segstore, and did not with Kafka."""
    theirs = by_server.get("kafka", {})
    ours = by_server.get("segstore", {}).items()
    return [
        t for t, (outcome, _) in sorted(ours) if outcome == "failed" and theirs.get(t, ("",))[0] != "failed"
    ]


def _kept() -> dict[str, dict[str, Results]]:
    """Return what came of earlier runs too."""
    file = HOME / "results.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def _keep(name: str, server: str, found: Results) -> None:
    results = _kept()
    results.setdefault(name, {})[server] = found
    (HOME / "results.json").write_text(json.dumps(results, indent=1))


# --- the command ----------------------------------------------------------------------------------


def main() -> int:
    global _SOURCES
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=SUITES, metavar="SUITE")
    parser.add_argument("--against", action="append", choices=SERVERS, metavar="SERVER")
    parser.add_argument("--sources", type=Path, default=HOME, metavar="FOLDER")
    parser.add_argument("--tests", action="append", default=[], metavar="ID")
    asked = parser.parse_args()
    _SOURCES = asked.sources.resolve()
    HOME.mkdir(parents=True, exist_ok=True)
    for name in asked.only or SUITES:
        for server in asked.against or SERVERS:
            directory = HOME / f"data-{name}-{server}"
            shutil.rmtree(directory, ignore_errors=True)
            with SERVERS[server](directory, SUITES[name].partitions) as address:
                found = SUITES[name].run(address, asked.tests)
            sys.stdout.write(f"{name}, {server}: {_counts(found)}\n")
            for test, (outcome, why) in sorted(found.items()):
                if outcome == "failed":
                    sys.stdout.write(f"  {test}: {why}\n")
            if not asked.tests:
                _keep(name, server, found)
    if asked.tests:
        return 0
    results = _kept()
    ordered = {name: results[name] for name in SUITES if name in results}
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        between("<!-- suites -->", "<!-- end of suites -->", text, table(ordered)), encoding="utf-8"
    )
    return int(any(test not in REASONS for found in ordered.values() for test in alone_failing(found)))


if __name__ == "__main__":
    sys.exit(main())
