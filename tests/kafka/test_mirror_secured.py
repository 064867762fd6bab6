"""Mirrors from and to a real Kafka broker that wants TLS, a certificate or SASL, by the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Certificates, certificates
from cli import ok, run
from cryptography.hazmat.primitives import serialization
from kafka_broker import Broker, free_port
from kafka_tools import classpath, console, why_not
from replica_logs import read

import segstore

pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),  # the first call may download
    pytest.mark.kind("Kafka's broker"),
]
LISTENERS = {"SASL": "SASL_SSL", "BARE": "SASL_PLAINTEXT", "CERTIFIED": "SSL"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="p w";'
MORE = """\
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map={protocols}
sasl.enabled.mechanisms={mechanisms}
ssl.keystore.type=PEM
ssl.keystore.location={server}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
listener.name.certified.ssl.client.auth=required
listener.name.sasl.plain.sasl.jaas.config={plain}
listener.name.bare.sasl.enabled.mechanisms=PLAIN
listener.name.bare.plain.sasl.jaas.config={plain}
listener.name.sasl.scram-sha-256.sasl.jaas.config={scram}
listener.name.sasl.scram-sha-512.sasl.jaas.config={scram}
"""


class Secured:
    """A broker that runs, the ports of its listeners, and files of certificates."""

    def __init__(self, broker: Broker, ports: dict[str, int], files: Certificates) -> None:
        self.broker, self.ports, self.files = broker, ports, files

    def client(self, listener: str, mechanism: str = "", **more: str) -> tuple[str, dict[str, str]]:
        """Return an address, and the settings of a client of it; names in `more` have no dots."""
        config = {"security.protocol": LISTENERS[listener]}
        if mechanism:
            config |= {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": "p w"}
        if listener != "BARE":
            config["ssl.ca.location"] = str(self.files.authority)
        if listener == "CERTIFIED":
            config["ssl.certificate.location"] = str(self.files.client)
        config |= {name.replace("_", "."): value for name, value in more.items()}
        return f"127.0.0.1:{self.ports[listener]}", config


def for_java(path: Path) -> Path:
    """Write a private key in the form that Kafka reads, PKCS #8, beside its certificates."""
    key, *chain = path.read_text().split("-----BEGIN CERTIFICATE-----")
    loaded = serialization.load_pem_private_key(key.encode(), None)
    form = serialization.PrivateFormat.PKCS8
    made = loaded.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    (target := path.with_suffix(".java.pem")).write_text("-----BEGIN CERTIFICATE-----".join([made, *chain]))
    return target


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    files, ports = certificates(tmp_path), {name: free_port() for name in LISTENERS}
    own = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
    broker = Broker(classpath(), tmp_path / "broker")
    held = dict(line.split("=", 1) for line in broker.properties.read_text().splitlines())
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    more = MORE.format(
        listeners=",".join([held["listeners"], *own]),
        advertised=",".join([held["advertised.listeners"], *own]),
        protocols=",".join(
            [held["listener.security.protocol.map"], *(":".join(pair) for pair in LISTENERS.items())]
        ),
        mechanisms=",".join(MECHANISMS),
        server=for_java(files.server),
        authority=files.authority,
        plain=PLAIN,
        scram=scram,
    )
    broker.properties.write_text(broker.properties.read_text() + more)
    with broker.running() as address:
        for mechanism in MECHANISMS[1:]:
            alter = ("--alter", "--entity-type", "users", "--entity-name", "alice")
            given = ("--add-config", f"{mechanism}=[password=p w]")
            console("org.apache.kafka.tools.ConfigCommand", address, *alter, *given)
        yield Secured(broker, ports, files)


CLIENTS = {
    **{f"SASL_SSL {each}": ("SASL", each) for each in MECHANISMS},
    "SASL_PLAINTEXT PLAIN": ("BARE", "PLAIN"),
    "SSL with a certificate": ("CERTIFIED", ""),
}
REFUSED: dict[str, tuple[str, str, dict[str, str]]] = {
    "another password": ("SASL", "SCRAM-SHA-512", {"sasl_password": "no"}),
    "another password, PLAIN": ("BARE", "PLAIN", {"sasl_password": "no"}),
    "a user that is not there": ("SASL", "SCRAM-SHA-256", {"sasl_username": "bob"}),
    "a mechanism that is not on": ("BARE", "SCRAM-SHA-512", {}),
}


TOLD = {
    "another password": "invalid credentials",
    "another password, PLAIN": "Invalid username or password",
    "a user that is not there": "invalid credentials",
    "a mechanism that is not on": "SCRAM-SHA-512.*PLAIN",
    "another authority": "certificate is not trusted",
    "no certificate": "wants a certificate that it trusts",
}


def options(directory: Path, config: dict[str, str]) -> tuple[object, ...]:
    """A file with the settings, as for Kafka's tools."""
    path = directory / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
    return ("--command-config", path)


def test_each_way_to_log_in(secured: Secured, tmp_path: Path) -> None:
    expected: dict[str, list[bytes | None]] = {}
    for number, (name, (listener, mechanism)) in enumerate(CLIENTS.items()):
        store, topic, mirror = tmp_path / f"store {number}", f"t{number}", tmp_path / f"mirror {number}"
        with segstore.open(store) as source:
            source.create_topic(topic)
            source.partition(topic).append_batch([b"%d %s" % (i, name.encode()) for i in range(500)])
            expected[topic] = [record.value for record in read(source.partition(topic))]
        address, config = secured.client(listener, mechanism)
        given = options(tmp_path, config)
        told = ok("mirror", "--to", address, "--store", store, "--once", *given).stdout
        assert "has 1 partitions, 500 offsets" in told, name
        ok("mirror", address, mirror, "--topics", ",".join(expected), "--once", *given)
        with segstore.open(mirror, "r") as copy:
            found = {each: [record.value for record in read(copy.partition(each))] for each in expected}
        assert found == expected, name
        assert segstore.check(mirror) == []
        assert segstore.check(store) == []


def test_who_may_not_log_in_is_told_why(secured: Secured, store_dir: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("a")
        store.partition("a").append(b"x")
    for name, (listener, mechanism, wrong) in REFUSED.items():
        address, config = secured.client(listener, mechanism, **wrong)
        is_refused(name, tmp_path, store_dir, address, config)
    address, config = secured.client("CERTIFIED", ssl_ca_location=str(secured.files.stranger))
    is_refused("another authority", tmp_path, store_dir, address, config)
    address, config = secured.client("CERTIFIED")
    del config["ssl.certificate.location"]
    is_refused("no certificate", tmp_path, store_dir, address, config)


def is_refused(name: str, directory: Path, store: Path, address: str, config: dict[str, str]) -> None:
    """Neither way of a mirror begins, and says why."""
    given = (*options(directory, config), "--set", "request.timeout.ms=5000", "--once")
    for way in (("mirror", address, directory / "no mirror"), ("mirror", "--to", address, "--store", store)):
        result = run(*way, *given)
        assert result.exit_code == 1, (name, result.output)
        assert re.search(TOLD[name], result.output), (name, result.output)
    assert not (directory / "no mirror").exists(), name
