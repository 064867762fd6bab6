"""Promise: clients of Kafka connect by TLS and SASL as they would to a broker: they produce, consume, join
groups, and administer users; and those that are not who they say they are can't.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from certificates import CLIENT_PRINCIPAL, Certificates, certificates
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka_python import member

import segstore

pytestmark = pytest.mark.kind("clients on the wire")

SECONDS = 60.0
VALUES = [b"value %d" % n for n in range(200)]
USERS = {"alice": "alice's secret, 'quoted'"}
PROTOCOLS = {
    "SSL": ("SSL", None, False),
    "mutual TLS": ("SSL", None, True),
    **{
        f"{protocol} {mechanism}": (protocol, mechanism, False)
        for protocol in ("SASL_PLAINTEXT", "SASL_SSL")
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    },
}
WAYS = pytest.mark.parametrize(("protocol", "mechanism", "mutual"), PROTOCOLS.values(), ids=PROTOCOLS)


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return certificates(tmp_path)


@contextmanager
def serving(
    store: segstore.Store, files: Certificates, protocol: str, mutual: bool = False, **settings: Any
) -> Iterator[segstore.Server]:
    """A server whose only user may do everything, and no one else anything."""
    given: dict[str, Any] = {"security_protocol": protocol, "group_initial_rebalance_delay_ms": 0}
    if "SSL" in protocol:
        given |= files.of_server
    if "SASL" in protocol:
        given |= {"sasl_users": USERS, "allow": ALL.format("alice")}
    if mutual:
        given |= {"ssl_client_auth": "required", "ssl_truststore_location": str(files.authority)}
        given |= {"allow": ALL.format(CLIENT_PRINCIPAL)}
    with segstore.serve(store, port=0, **{**given, **settings}) as server:
        yield server


ALL = "User:{}: all topic *; all group *; all cluster; all transactional-id *"


def of_librdkafka(
    server: segstore.Server, files: Certificates, protocol: str, mechanism: str | None, mutual: bool = False
) -> dict[str, Any]:
    settings = {"bootstrap.servers": server.bootstrap_servers, "security.protocol": protocol, "log_level": 0}
    if "SSL" in protocol:
        settings |= files.of_client
    if mutual:
        settings |= {"ssl.certificate.location": str(files.client), "ssl.key.location": str(files.client)}
    if mechanism is not None:
        settings |= {"sasl.mechanism": mechanism, "sasl.username": "alice"}
        settings |= {"sasl.password": USERS["alice"]}
    return settings


def of_kafka_python(
    server: segstore.Server, files: Certificates, protocol: str, mechanism: str | None, mutual: bool = False
) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap_servers": server.bootstrap_servers, "security_protocol": protocol}
    if "SSL" in protocol:
        settings |= {"ssl_cafile": str(files.authority)}
    if mutual:
        settings |= {"ssl_certfile": str(files.client), "ssl_keyfile": str(files.client)}
    if mechanism is not None:
        settings |= {"sasl_mechanism": mechanism, "sasl_plain_username": "alice"}
        settings |= {"sasl_plain_password": USERS["alice"]}
    return settings


@WAYS
def test_librdkafka(
    store: segstore.Store, files: Certificates, protocol: str, mechanism: str | None, mutual: bool
) -> None:
    store.create_topic("t")
    with serving(store, files, protocol, mutual) as server:
        settings = of_librdkafka(server, files, protocol, mechanism, mutual)
        producer = confluent_kafka.Producer(settings)
        for value in VALUES:
            producer.produce("t", value)
        assert producer.flush(SECONDS) == 0
        consumer = confluent_kafka.Consumer(
            {**settings, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        consumer.subscribe(["t"])
        found: list[bytes] = []
        end = time.monotonic() + SECONDS
        while len(found) < len(VALUES) and time.monotonic() < end:
            messages = consumer.consume(1000, 0.2)
            assert not [message.error() for message in messages if message.error()]
            found += [message.value() for message in messages]
        consumer.commit(asynchronous=False)
        consumer.close()
    assert found == VALUES
    assert [record.value for record in store.partition("t", 0).read(0)] == VALUES


@WAYS
def test_kafka_python(
    store: segstore.Store, files: Certificates, protocol: str, mechanism: str | None, mutual: bool
) -> None:
    store.create_topic("t")
    with serving(store, files, protocol, mutual) as server:
        settings = of_kafka_python(server, files, protocol, mechanism, mutual)
        producer = kafka.KafkaProducer(**settings)
        for value in VALUES:
            producer.send("t", value)
        producer.flush(SECONDS)
        producer.close()
        consumer = member("t", group_id="g", auto_offset_reset="earliest", **settings)
        found: list[bytes] = []
        end = time.monotonic() + SECONDS
        while len(found) < len(VALUES) and time.monotonic() < end:
            found += [record.value for each in consumer.poll(200).values() for record in each]
        consumer.commit()
        consumer.close()
    assert found == VALUES


# --- those who may not enter -----------------------------------------------------------------------

AUTHENTICATION, SSL = KafkaError._AUTHENTICATION, KafkaError._SSL
REFUSED: dict[str, tuple[str, str | None, dict[str, Any], int]] = {
    "a wrong password, PLAIN": ("SASL_PLAINTEXT", "PLAIN", {"sasl.password": "wrong"}, AUTHENTICATION),
    "a wrong password, SCRAM": ("SASL_SSL", "SCRAM-SHA-256", {"sasl.password": "wrong"}, AUTHENTICATION),
    "nobody, PLAIN": ("SASL_SSL", "PLAIN", {"sasl.username": "bob"}, AUTHENTICATION),
    "nobody, SCRAM": ("SASL_PLAINTEXT", "SCRAM-SHA-512", {"sasl.username": "bob"}, AUTHENTICATION),
}


@pytest.mark.parametrize(("protocol", "mechanism", "wrong", "code"), REFUSED.values(), ids=REFUSED)
def test_who_is_refused(
    store: segstore.Store,
    files: Certificates,
    caplog: pytest.LogCaptureFixture,
    protocol: str,
    mechanism: str,
    wrong: dict[str, Any],
    code: int,
) -> None:
    caplog.set_level("DEBUG")
    errors: list[Any] = []
    with serving(store, files, protocol) as server:
        settings = {**of_librdkafka(server, files, protocol, mechanism), **wrong, "error_cb": errors.append}
        client = confluent_kafka.Producer(settings)
        end = time.monotonic() + SECONDS
        while code not in [each.code() for each in errors] and time.monotonic() < end:
            client.poll(0.1)
    assert code in [each.code() for each in errors]
    assert USERS["alice"] not in caplog.text
    assert "wrong" not in caplog.text


# --- users of SCRAM, by clients --------------------------------------------------------------------


def test_users_are_made_and_removed_over_the_wire(store: segstore.Store, files: Certificates) -> None:
    with serving(store, files, "SASL_SSL", super_users="User:alice") as server:
        settings = of_librdkafka(server, files, "SASL_SSL", "SCRAM-SHA-256")
        admin = AdminClient(settings)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
        made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", info, b"bob's")])
        made["bob"].result(SECONDS)
        (told,) = [admin.describe_user_scram_credentials(["bob"])["bob"].result(SECONDS)]
        assert [(each.mechanism, each.iterations) for each in told.scram_credential_infos] == [
            (ScramMechanism.SCRAM_SHA_512, 8192)
        ]
        theirs = {**settings, "sasl.username": "bob", "sasl.password": "bob's"}
        theirs["sasl.mechanism"] = "SCRAM-SHA-512"
        assert AdminClient(theirs).list_topics(timeout=SECONDS).topics == {}
        gone = admin.alter_user_scram_credentials(
            [UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_512)]
        )
        gone["bob"].result(SECONDS)
        with pytest.raises(KafkaException):
            AdminClient(theirs).list_topics(timeout=2)
        with pytest.raises(KafkaException) as missing:
            admin.describe_user_scram_credentials(["bob"])["bob"].result(SECONDS)
        assert missing.value.args[0].code() == 91
