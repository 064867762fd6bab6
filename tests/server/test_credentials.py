"""Users and their credentials: where they come from, how they are kept, and that nothing tells a secret."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any

import pytest
from calls import call, node_of
from damage import flip
from scram_client import ScramClient

import segstore
from segstore.coordinator.credentials import scram_credentials
from segstore.errors import ConfigError, CorruptCheckpointError, InvalidArgumentError, StorageError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.protocol.scram_keys import HASHES
from segstore.server.apis import Api
from segstore.server.security.scram import ScramExchange, of_password, of_salted
from segstore.server.security.users import Users, users_of
from segstore.server.settings import ServerConfig
from segstore.storage.meta.scram_credentials import ScramCredential

KIND = structs("AlterUserScramCredentialsRequest")


def test_a_user_in_place_of_a_file_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidArgumentError, match="the path of a file") as refused:
        users_of("/there/is/none/alice:secret")
    assert "secret" not in str(refused.value)


# --- SCRAM -----------------------------------------------------------------------------------------


def test_the_example_of_rfc_7677() -> None:
    """The server's messages are those of the RFC, byte by byte."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    import hashlib

    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    held = of_salted("SCRAM-SHA-256", salt, 4096, salted)
    exchange = ScramExchange("SCRAM-SHA-256", lambda name: held, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = exchange.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = exchange.respond(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.principal == "user"


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("name", ["alice", "a,b=c", "Zoë"])
def test_names_and_passwords_of_all_letters(mechanism: str, name: str) -> None:
    asked: list[str] = []
    held = of_password(mechanism, "pass,wörd=")

    def find(name: str) -> ScramCredential:
        asked.append(name)
        return held

    exchange, client = ScramExchange(mechanism, find), ScramClient(HASHES[mechanism], name, "pass,wörd=")
    final = client.final(exchange.respond(client.first()))
    assert exchange.principal is None
    assert exchange.respond(final) == b"v=" + client.verifier
    assert (exchange.principal, asked) == (name, [name])


# --- users -----------------------------------------------------------------------------------------

JAAS = """KafkaServer {
    org.apache.kafka.common.security.plain.PlainLoginModule required
    username="admin"
    password="admin-secret"
    user_alice="se:cret"
    user_bob="a \\"quoted\\" one";
};
"""


def test_a_file_of_users(tmp_path: Path) -> None:
    path, link = tmp_path / "users", tmp_path / "link"
    path.write_text("# who may come in\nalice:se:cret\n\nbob: with a blank\n")
    link.symlink_to(path)  # as a secret is mounted
    for source in (path, link):
        users = users_of(str(source))
        assert users.may_enter("alice", "se:cret")
        assert users.may_enter("bob", " with a blank")
        assert not users.may_enter("# who may come in", "")
    path.write_text(JAAS)
    users = users_of(str(path))
    assert users.may_enter("alice", "se:cret")
    assert users.may_enter("bob", 'a "quoted" one')
    assert not users.may_enter("admin", "admin-secret")


@pytest.mark.parametrize("text", ["alice", "alice:", ":secret", "a:b\nsecret"])
def test_lines_that_are_none_are_told_by_number_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"line \d is not NAME:PASSWORD") as error:
        users_of(str(path))
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("given", ["alice:topsecret", "alice:top/secret"])
def test_a_user_in_place_of_the_file_is_not_shown(given: str) -> None:
    with pytest.raises(InvalidArgumentError, match="sasl_users is the path of a file of users") as error:
        users_of(ServerConfig.parse({"sasl_users": given}).sasl_users)
    assert "secret" not in str(error.value)
    assert error.value.__context__ is None


def test_files_that_can_t_be_read(store: segstore.Store, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        segstore.serve(store, port=0, security_protocol="SASL_PLAINTEXT", sasl_users=tmp_path / "missing")
    (tmp_path / "users").write_bytes(b"\xff:\xff")
    with pytest.raises(InvalidArgumentError, match="not UTF-8"):
        users_of(str(tmp_path / "users"))


@pytest.mark.parametrize("name", ["alice", "mallory"])
@pytest.mark.parametrize("password", ["", "s", "secre", "secret ", "\ud800"])
def test_wrong_passwords(name: str, password: str) -> None:
    assert not Users({"alice": "secret"}).may_enter(name, password)


# --- secrets ---------------------------------------------------------------------------------------

SECRETS: dict[str, Any] = {
    "sasl_users": {"alice": "hunter2"},
    "ssl_keystore_key": "hunter2",
    "ssl_keystore_certificate_chain": "chain",
    "ssl_key_password": "hunter2",
    "allow": ["User:a: read topic t*"],
    "super_users": "User:ANONYMOUS",
}


def test_secrets_are_shown_nowhere(store: segstore.Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    config = ServerConfig(**SECRETS)
    assert "hunter2" not in repr(config)
    assert "hunter2" not in repr(Users({"alice": "hunter2"}))
    assert "hunter2" not in repr(of_password("SCRAM-SHA-256", "hunter2"))
    kind = structs("DescribeConfigsRequest").DescribeConfigsResource
    resources = [kind(resource_type=4, resource_name="1", configuration_keys=None)]
    (told,) = call(node_of(store, **SECRETS), Api.DESCRIBE_CONFIGS, 4, resources=resources).results
    rows = {each.name: each for each in told.configs}
    for name in ("sasl.users", "ssl.keystore.key", "ssl.key.password"):
        assert (rows[name].value, rows[name].is_sensitive) == (None, True)
    assert rows["ssl.keystore.certificate.chain"].value == "chain"
    assert (rows["allow"].value, rows["super.users"].value) == ("User:a: read topic t*", "User:ANONYMOUS")
    assert "hunter2" not in repr(told) + caplog.text


@pytest.mark.parametrize("users", [{"alice": ""}, {"": "hunter2"}, {"alice": b"hunter2"}, 7, "", {"a": "\0"}])
def test_users_that_are_refused(users: Any) -> None:
    with pytest.raises(ConfigError, match="sasl_users=a secret value: must be a mapping") as error:
        ServerConfig(sasl_users=users)
    assert "hunter2" not in str(error.value)


CONFLICTS: dict[str, dict[str, str]] = {
    "security_protocol=SSL needs ssl_keystore_location": {"security_protocol": "SSL"},
    "given together": {"ssl_keystore_key": "k"},
    "both given: one": {
        "ssl_keystore_location": "f", "ssl_keystore_key": "k", "ssl_keystore_certificate_chain": "c",
    },
    "ssl_truststore_certificates are both given": {
        "ssl_truststore_location": "f", "ssl_truststore_certificates": "c",
    },
    "ssl_client_auth=required needs ssl_truststore_location": {
        "security_protocol": "SSL", "ssl_keystore_location": "f", "ssl_client_auth": "required",
    },
}  # fmt: skip


@pytest.mark.parametrize(("told", "settings"), CONFLICTS.items(), ids=CONFLICTS)
def test_settings_that_contradict_each_other(told: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=told):
        ServerConfig(**settings)


# --- what a store keeps ----------------------------------------------------------------------------


def upserted(name: str, mechanism: int = 1, iterations: int = 4096, **fields: bytes) -> Any:
    given = {"salt": b"salt", "salted_password": b"salted", **fields}
    return KIND.ScramCredentialUpsertion(name=name, mechanism=mechanism, iterations=iterations, **given)


def deleted(name: str, mechanism: int = 1) -> Any:
    return KIND.ScramCredentialDeletion(name=name, mechanism=mechanism)


def altered(store: segstore.Store, *changes: Any) -> dict[str, int]:
    upsertions = [each for each in changes if hasattr(each, "salt")]
    deletions = [each for each in changes if not hasattr(each, "salt")]
    fields = {"deletions": deletions, "upsertions": upsertions}
    answer = call(node_of(store), Api.ALTER_USER_SCRAM_CREDENTIALS, 0, **fields)
    return {each.user: each.error_code for each in answer.results}


def described(store: segstore.Store, *names: str) -> dict[str, Any]:
    users = [structs("DescribeUserScramCredentialsRequest").UserName(name=name) for name in names] or None
    answer = call(node_of(store), Api.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=users)
    return {
        each.user: each.error_code or [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in answer.results
    }


def test_users_are_kept(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        assert altered(store, upserted("bob"), upserted("alice", 2, 8192), upserted("alice")) == {
            "bob": 0, "alice": 0,
        }  # fmt: skip
    for mode in ("rw", "r"):
        with segstore.open(store_dir, mode) as store:
            assert described(store) == {"alice": [(1, 4096), (2, 8192)], "bob": [(1, 4096)]}
            assert described(store, "bob", "eve") == {"bob": [(1, 4096)], "eve": Code.RESOURCE_NOT_FOUND}
            assert described(store, "bob", "bob") == {"bob": Code.DUPLICATE_RESOURCE}
    with segstore.open(store_dir) as store:
        assert altered(store, deleted("bob"), deleted("alice", 2)) == {"bob": 0, "alice": 0}
        assert described(store) == {"alice": [(1, 4096)]}
    with segstore.open(store_dir, "r") as store:
        assert altered(store, upserted("bob")) == {"bob": Code.POLICY_VIOLATION}


REFUSED: dict[str, tuple[list[Any], dict[str, int]]] = {
    "no name": ([upserted("")], {"": Code.UNACCEPTABLE_CREDENTIAL}),
    "no mechanism": ([upserted("a", 3)], {"a": Code.UNSUPPORTED_SASL_MECHANISM}),
    "too few iterations": ([upserted("a", iterations=4095)], {"a": Code.UNACCEPTABLE_CREDENTIAL}),
    "too many iterations": ([upserted("a", iterations=16385)], {"a": Code.UNACCEPTABLE_CREDENTIAL}),
    "no salt": ([upserted("a", salt=b"")], {"a": Code.UNACCEPTABLE_CREDENTIAL}),
    "nothing to delete": ([deleted("a")], {"a": Code.RESOURCE_NOT_FOUND}),
    "twice": ([upserted("a"), deleted("a")], {"a": Code.DUPLICATE_RESOURCE}),
    "one of two is wrong": ([upserted("a"), upserted("a", 9)], {"a": Code.UNSUPPORTED_SASL_MECHANISM}),
}


@pytest.mark.parametrize(("changes", "codes"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_changes_nothing(
    store: segstore.Store, changes: list[Any], codes: dict[str, int]
) -> None:
    assert altered(store, *changes, upserted("other")) == {**codes, "other": 0}
    assert described(store) == {"other": [(1, 4096)]}


def test_damage_to_both_copies_is_told_and_one_is_mended(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        altered(store, upserted("bob"))
    first, second = store_dir / ".segstore" / "scram.json", store_dir / ".segstore" / "scram.copy"
    held = first.read_bytes()
    assert second.read_bytes() == held
    assert first.stat().st_mode & 0o077 == 0
    flip(first, 100)
    with segstore.open(store_dir) as store:
        assert described(store) == {"bob": [(1, 4096)]}
        assert [Path(each.path) for each in store.mended] == [first]
    assert first.read_bytes() == held
    flip(first, 100)
    flip(second, 100)
    with segstore.open(store_dir) as store:
        with pytest.raises(CorruptCheckpointError):
            scram_credentials(store)
        with pytest.raises(CorruptCheckpointError):
            segstore.serve(store, port=0, security_protocol="SASL_PLAINTEXT")
    assert [each.path for each in segstore.check(store_dir)] == [str(first)]
    first.write_bytes(held)
    second.write_bytes(held)


def test_a_replicated_store_keeps_them_in_its_metadata(tmp_path: Path) -> None:
    places = [tmp_path / str(n) for n in range(3)]
    with segstore.open_replicated(places) as store:
        assert altered(store, upserted("bob")) == {"bob": 0}
    with segstore.open_replicated(places) as store:
        assert described(store) == {"bob": [(1, 4096)]}
        assert altered(store, deleted("bob")) == {"bob": 0}
        assert described(store) == {}
