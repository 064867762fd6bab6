"""--command-config: properties files of Kafka's tools, as settings of librdkafka."""

from __future__ import annotations

import pytest

from segstore.cli.places.properties import client_settings
from segstore.errors import ConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"

FILES = {
    "nothing": ("", {}),
    "comments": ("# a\n  ! b\n\n", {}),
    "each separator": ("a=1\nb : 2\nc 3\n d\t=\t4 ", {"a": "1", "b": "2", "c": "3", "d": "4"}),
    "a value with separators": ("a=b=c:d e", {"a": "b=c:d e"}),
    "an empty value": ("a=", {"a": ""}),
    "escapes": (r"a\ b=c\\d\:e", {"a b": r"c\d:e"}),
    "a line that goes on": ("a=b,\\\n   c\nd=e", {"a": "b,c", "d": "e"}),
    "a last line that goes on": ("a=b\\", {"a": "b"}),
    "two backslashes": ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    "the later counts": ("a=1\na=2", {"a": "2"}),
    "a login": (
        f'sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN} required \\\n  username="u" password="p=;";',
        {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p=;"},
    ),
    "a login by SCRAM": (
        f'sasl.jaas.config={SCRAM} required password="p" username="u";',
        {"sasl.username": "u", "sasl.password": "p"},
    ),
    "trusted certificates": (
        "ssl.truststore.type=PEM\nssl.truststore.location=/ca.pem",
        {"ssl.ca.location": "/ca.pem"},
    ),
    "a key store": (
        "ssl.keystore.type=pkcs12\nssl.keystore.location=/k.p12\nssl.keystore.password=x",
        {"ssl.keystore.location": "/k.p12", "ssl.keystore.password": "x"},
    ),
}


@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES)
def test_file(text: str, expected: dict[str, str]) -> None:
    assert client_settings(text, "client.properties") == expected


REFUSED = {
    "no value": ("a=1\nb", "f, line 2: 'b' must be NAME=VALUE"),
    "no name": ("=1", "f, line 1: '=1' must be NAME=VALUE"),
    "the line where one began": ("\na\\\nb", "f, line 2: 'ab' must be"),
    "another login": (
        "sasl.jaas.config=com.x.Krb5LoginModule required;",
        "f, line 1: of sasl.jaas.config only",
    ),
    "half a login": (f'sasl.jaas.config={PLAIN} required username="u";', "with username and password"),
    "a trust store": (
        "ssl.truststore.location=/t.jks",
        "ssl.truststore.location is a JKS file",
    ),
    "a key store": (
        "ssl.keystore.location=/k.jks",
        "ssl.keystore.location is a JKS file",
    ),
}


@pytest.mark.parametrize(("text", "told"), REFUSED.values(), ids=REFUSED)
def test_refused(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        client_settings(text, "f")
    assert told in str(refused.value)
