"""Entries of the allow list: what they mean, and what is refused."""

from __future__ import annotations

import pytest

from segstore.errors import ConfigError, InvalidArgumentError
from segstore.server.authorized import AclOperation as O
from segstore.server.security.allow_list import ResourceType as R
from segstore.server.security.allow_list import rules
from segstore.server.security.authorizer import Authorizer, authorizer_of
from segstore.server.settings import ServerConfig

LISTS = [
    "User:alice: read,write topic flights*; group g*",
    "User:bob: all topic own; describe-configs cluster",
    "User:CN=carol,O=x: Read Topic *; idempotent_write CLUSTER kafka-cluster; write transactional-id tx-*",
    "User:*: describe topic public",
    "User:dave: read,write topic cluster; read topic topic; delete group group",
    "# User:eve: all topic *",
    "",
]
MAY: list[tuple[str, O, R, str, bool]] = [
    ("alice", O.READ, R.TOPIC, "flights", True),
    ("alice", O.WRITE, R.TOPIC, "flights-2026", True),
    ("alice", O.DESCRIBE, R.TOPIC, "flights", True),
    ("alice", O.READ, R.TOPIC, "flight", False),
    ("alice", O.DELETE, R.TOPIC, "flights", False),
    ("alice", O.CREATE, R.TOPIC, "flights", False),
    ("alice", O.DESCRIBE_CONFIGS, R.TOPIC, "flights", False),
    ("alice", O.READ, R.GROUP, "g1", True),
    ("alice", O.DESCRIBE, R.GROUP, "g", True),
    ("alice", O.DELETE, R.GROUP, "g1", False),
    ("alice", O.READ, R.GROUP, "flights", False),
    ("alice", O.DESCRIBE, R.TOPIC, "public", True),
    ("alice", O.READ, R.TOPIC, "public", False),
    ("Alice", O.READ, R.TOPIC, "flights", False),
    ("bob", O.ALTER_CONFIGS, R.TOPIC, "own", True),
    ("bob", O.READ, R.TOPIC, "own2", False),
    ("bob", O.DESCRIBE_CONFIGS, R.CLUSTER, "kafka-cluster", True),
    ("bob", O.DESCRIBE, R.CLUSTER, "kafka-cluster", False),
    ("CN=carol,O=x", O.READ, R.TOPIC, "anything", True),
    ("CN=carol,O=x", O.IDEMPOTENT_WRITE, R.CLUSTER, "kafka-cluster", True),
    ("CN=carol,O=x", O.WRITE, R.TRANSACTIONAL_ID, "tx-1", True),
    ("CN=carol,O=x", O.DESCRIBE, R.TRANSACTIONAL_ID, "tx-1", True),
    ("CN=carol", O.READ, R.TOPIC, "anything", False),
    ("dave", O.WRITE, R.TOPIC, "cluster", True),
    ("dave", O.READ, R.TOPIC, "topic", True),
    ("dave", O.DELETE, R.GROUP, "group", True),
    ("eve", O.READ, R.TOPIC, "t", False),
    ("*", O.READ, R.TOPIC, "flights", False),
    ("root", O.ALTER, R.CLUSTER, "kafka-cluster", True),
]


@pytest.mark.parametrize(("principal", "operation", "resource", "name", "may"), MAY)
def test_who_may_what(principal: str, operation: O, resource: R, name: str, may: bool) -> None:
    authorizer = authorizer_of(ServerConfig(allow=LISTS, super_users="User:root; User:other"))
    assert authorizer is not None
    assert authorizer.allows(principal, operation, resource, name) is may
    told = authorizer.operations(principal, resource, name) >> operation & 1
    assert told == may


def test_any_resource_of_a_type() -> None:
    authorizer = Authorizer([rule for entry in LISTS for rule in rules(entry)], ["User:root"])
    assert authorizer.allows_any("alice", O.WRITE, R.TOPIC)
    assert not authorizer.allows_any("nobody", O.WRITE, R.TOPIC)
    assert authorizer.allows_any("root", O.WRITE, R.TOPIC)


WRONG = {
    "alice: read topic t": "'alice' is no principal",
    "User:: read topic t": "'User:' is no principal",
    "Group:g: read topic t": "is no principal",
    "User:alice": "an entry is",
    "User:alice: ": "an entry is",
    "User:alice: read tropic t": "resources are topic, group, cluster, transactional-id",
    "User:alice: fly topic t": "'fly' is no operation of a topic: there are all, read",
    "User:alice: write group g": "'write' is no operation of a group",
    "User:alice: topic t": "has no operation",
    "User:alice: write topic t; group g": "has no operation",
    "User:alice: read topic": "has no pattern",
    "User:alice: alter cluster other": "there is one cluster",
}


@pytest.mark.parametrize(("entry", "told"), WRONG.items(), ids=WRONG)
def test_an_entry_that_is_refused(entry: str, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"allow=.*{told}|{told}"):
        rules(entry)
    with pytest.raises(ConfigError, match=told):
        ServerConfig(allow=[entry])


@pytest.mark.parametrize("allow", [1, [1], {"a": 1}.values()])
def test_what_is_no_list_is_refused(allow: object) -> None:
    with pytest.raises(ConfigError, match=r"allow=.*must be entries"):
        ServerConfig(allow=allow)  # type: ignore[arg-type]


def test_a_list_without_entries_denies_all() -> None:
    assert authorizer_of(ServerConfig()) is None
    nobody = authorizer_of(ServerConfig(allow=[]))
    assert nobody is not None
    assert not nobody.allows("ANONYMOUS", O.DESCRIBE, R.TOPIC, "t")
    assert authorizer_of(ServerConfig(super_users="User:a")) is not None


@pytest.mark.parametrize("text", ["alice", "User:", "User:*", "User:a;b"])
def test_super_users_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"super_users: .*is no principal"):
        ServerConfig(super_users=text)


def test_rules_are_told_as_they_are_given() -> None:
    found = [str(rule) for rule in rules("User:a: write,read topic t*; all cluster")]
    assert found == ["User:a: read,write topic t*", "User:a: all cluster kafka-cluster"]
