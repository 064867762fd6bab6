"""What a connection may do before and after its client has said who it is, message by message."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from typing import Any

import pytest
from scram_client import ScramClient
from serving import connections, serving, within
from waiting import until
from wire_client import SOFTWARE, WireClient

import segstore
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api, served
from segstore.server.security.failure import AuthenticationError
from segstore.server.security.plain import PlainExchange
from segstore.server.security.scram import ScramExchange, of_password
from segstore.server.security.users import Users
from segstore.testing import Broker

USERS = {"alice": "secret", "bob": "hidden"}
SASL: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_users": USERS,
    "connection_failed_authentication_delay_ms": 1,
}
DELAY = 60.0
FAILED = int(Code.SASL_AUTHENTICATION_FAILED)


def connected(server: segstore.Server) -> WireClient:
    return WireClient(server.host, server.port)


def plain(name: str = "alice", password: str = "secret", other: str = "") -> bytes:
    return f"{other}\0{name}\0{password}".encode()


def begun(wire: WireClient, mechanism: str = "PLAIN") -> WireClient:
    assert wire.ask(Api.SASL_HANDSHAKE, 1, mechanism=mechanism).error_code == 0
    return wire


def said(wire: WireClient, token: bytes, version: int = 2) -> Any:
    return wire.ask(Api.SASL_AUTHENTICATE, version, auth_bytes=token)


def principals(server: segstore.Server) -> set[str]:
    return {each.principal for each in connections(server)}


# --- the way in ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_client_enters_by_plain(store: segstore.Store, version: int) -> None:
    with serving(store, **SASL) as server, connected(server) as wire:
        assert wire.ask(Api.API_VERSIONS, 3, **SOFTWARE).error_code == 0
        shaken = wire.ask(Api.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        assert (shaken.error_code, shaken.mechanisms) == (0, ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
        entered = said(wire, plain(other="alice"), version)
        assert (entered.error_code, entered.auth_bytes, entered.session_lifetime_ms) == (0, b"", 0)
        assert wire.ask(Api.METADATA, 9, topics=None).topics == []
        assert principals(server) == {"alice"}
        again = wire.ask(Api.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        assert again.error_code == Code.ILLEGAL_SASL_STATE
        assert said(wire, plain()).error_code == Code.ILLEGAL_SASL_STATE
        assert wire.ask(Api.METADATA, 9, topics=None).topics == []


@pytest.mark.parametrize(("mechanism", "kind"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_a_client_enters_by_scram(store: segstore.Store, mechanism: str, kind: str) -> None:
    with serving(store, **SASL) as server, connected(server) as wire:
        client = ScramClient(kind, "alice", "secret")
        first = said(begun(wire, mechanism), client.first())
        final = said(wire, client.final(first.auth_bytes))
        assert (final.error_code, final.auth_bytes) == (0, b"v=" + client.verifier)
        assert principals(server) == {"alice"}


def test_a_server_without_sasl_says_so(store: segstore.Store) -> None:
    with serving(store) as server, connected(server) as wire:
        assert wire.ask(Api.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == Code.ILLEGAL_SASL_STATE
        assert said(wire, plain()).error_code == Code.ILLEGAL_SASL_STATE
        assert principals(server) == {"ANONYMOUS"}


def test_a_callable_decides(store: segstore.Store) -> None:
    asked: list[tuple[str, str]] = []

    def check(name: str, password: str) -> bool:
        asked.append((name, password))
        if name == "broken":
            raise RuntimeError(password)
        return name == "carol"

    with serving(store, **{**SASL, "sasl_users": check}) as server:
        for name, code in (("carol", 0), ("dave", FAILED), ("broken", FAILED)):
            with connected(server) as wire:
                assert said(begun(wire), plain(name)).error_code == code
    assert asked == [("carol", "secret"), ("dave", "secret"), ("broken", "secret")]


# --- what is refused -------------------------------------------------------------------------------

TOKENS: dict[str, tuple[str, bytes]] = {
    "a wrong password": ("PLAIN", plain(password="secre")),
    "an unknown user": ("PLAIN", plain("mallory")),
    "no user": ("PLAIN", plain("")),
    "no password": ("PLAIN", plain(password="")),
    "another's authority": ("PLAIN", plain(other="bob")),
    "no token of PLAIN": ("PLAIN", b"alice"),
    "too many parts": ("PLAIN", b"\0alice\0secret\0"),
    "no UTF-8": ("PLAIN", b"\0\xff\0\xff"),
    "nothing": ("SCRAM-SHA-256", b""),
    "no message of SCRAM": ("SCRAM-SHA-256", b"\0alice\0secret"),
    "channel binding": ("SCRAM-SHA-256", b"p=tls-unique,,n=alice,r=x"),
    "an extension": ("SCRAM-SHA-512", b"n,,n=alice,r=x,tokenauth=true"),
    "another's authority, SCRAM": ("SCRAM-SHA-512", b"n,a=bob,n=alice,r=x"),
    "SCRAM and no UTF-8": ("SCRAM-SHA-512", b"n,,n=\xff,r=x"),
}


@pytest.mark.parametrize(("mechanism", "token"), TOKENS.values(), ids=TOKENS)
def test_a_token_that_is_refused_ends_the_connection(
    store: segstore.Store, caplog: pytest.LogCaptureFixture, mechanism: str, token: bytes
) -> None:
    caplog.set_level("DEBUG")
    with serving(store, **SASL) as server:
        with connected(server) as wire:
            refused = said(begun(wire, mechanism), token)
            assert (refused.error_code, refused.auth_bytes) == (FAILED, b"")
            assert "secret" not in (refused.error_message or "")
            assert wire.is_closed()
        until(lambda: not connections(server))
    assert "secre" not in caplog.text


def test_wrong_proofs_are_refused_and_tell_nothing_of_users(store: segstore.Store) -> None:
    def ends(client: ScramClient, **changes: Any) -> tuple[bytes, str]:
        with connected(server) as wire:
            first = said(begun(wire, "SCRAM-SHA-256"), client.first()).auth_bytes
            refused = said(wire, client.final(first, **changes))
            assert refused.error_code == FAILED
            assert wire.is_closed()
            return first, refused.error_message

    with serving(store, **SASL) as server:
        known, wrong = ends(ScramClient("sha256", "alice", "wrong"))
        unknown, nobody = ends(ScramClient("sha256", "mallory", "wrong"))
        assert wrong == nobody
        assert known.rpartition(b",i=")[2] == unknown.rpartition(b",i=")[2]
        salts = {ends(ScramClient("sha256", "mallory", "x"))[0].split(b",")[1] for _ in range(2)}
        assert salts == {unknown.split(b",")[1]}  # as a user's salt would be
        ends(ScramClient("sha256", "alice", "secret"), binding="eSws")
        ends(ScramClient("sha256", "alice", "secret"), nonce="client-nonce")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_who_is_removed_within_an_exchange_does_not_enter(store: segstore.Store, mechanism: str) -> None:
    """Behind its handshake, and behind its first token; the others go on."""
    with serving(store, **SASL) as server:
        for name, password in USERS.items():
            with connected(server) as wire:
                client = ScramClient("sha256", name, password)
                token = plain(name, password)
                begun(wire, mechanism)
                if mechanism != "PLAIN":
                    token = client.final(said(wire, client.first()).auth_bytes)
                server.reload(sasl_users={"alice": "secret"})
                assert said(wire, token).error_code == (0 if name == "alice" else FAILED)
            server.reload(sasl_users=USERS)
        with connected(server) as wire:
            begun(wire, mechanism)
            server.reload(sasl_enabled_mechanisms="SCRAM-SHA-512")
            assert said(wire, plain()).error_code == FAILED


def test_a_proof_is_good_once(store: segstore.Store) -> None:
    """What was heard on one connection is worth nothing on another."""
    with serving(store, **SASL) as server, connected(server) as wire, connected(server) as heard:
        client = ScramClient("sha256", "alice", "secret")
        final = client.final(said(begun(wire, "SCRAM-SHA-256"), client.first()).auth_bytes)
        assert said(wire, final).error_code == 0
        said(begun(heard, "SCRAM-SHA-256"), client.first())
        assert said(heard, final).error_code == FAILED


def test_an_unknown_mechanism_is_told_which_there_are(store: segstore.Store) -> None:
    with serving(store, **SASL, sasl_enabled_mechanisms="SCRAM-SHA-512") as server:
        for version, mechanism, code in ((1, "GSSAPI", 33), (1, "PLAIN", 33), (0, "SCRAM-SHA-512", 35)):
            with connected(server) as wire:
                refused = wire.ask(Api.SASL_HANDSHAKE, version, mechanism=mechanism)
                assert (refused.error_code, refused.mechanisms) == (code, ["SCRAM-SHA-512"])
                assert wire.is_closed()


def test_nothing_else_is_answered_before(store: segstore.Store) -> None:
    """Every API but two; SaslAuthenticate before its handshake; and what comes with a refused token."""
    with serving(store, **SASL) as server:
        first = {Api.API_VERSIONS, Api.SASL_HANDSHAKE}
        for api in set(server.node.apis) - first:
            with connected(server) as wire:
                wire.send(api, served(api).low)
                assert wire.is_closed(), api
        for then in (Api.METADATA, Api.API_VERSIONS, Api.SASL_HANDSHAKE):
            with connected(server) as wire:
                begun(wire).send(then, 1)
                assert wire.is_closed(), then
        with connected(server) as wire:
            begun(wire).send(Api.SASL_AUTHENTICATE, 2, auth_bytes=plain(password="wrong"))
            sent = wire.send(Api.METADATA, 1, topics=None)
            assert struct.unpack(">i", wire.receive_bytes()[:4]) == (sent.correlation_id - 1,)
            assert wire.is_closed()


def test_large_requests_are_taken_after_authentication_only(store: segstore.Store) -> None:
    with serving(store, **SASL, sasl_server_max_receive_size=1000) as server:
        with connected(server) as wire:
            begun(wire).socket.sendall(struct.pack(">i", 1001))
            assert wire.is_closed()
        with connected(server) as wire:
            assert said(begun(wire), plain()).error_code == 0
            topics = ["x" * 200 for _ in range(100)]
            assert wire.ask(Api.METADATA, 1, topics=[_named(each) for each in topics]).topics


def _named(name: str) -> Any:
    from segstore.protocol.codec import structs

    return structs("MetadataRequest").MetadataRequestTopic(name=name)


def test_a_refusal_comes_late(store: segstore.Store) -> None:
    """The answer waits as long as the setting says."""
    delays: list[float] = []
    with serving(store, **{**SASL, "connection_failed_authentication_delay_ms": 60_000}) as server:
        loop = server.node.loop
        later = loop.later

        def noted(seconds: float, call: Any) -> Any:
            delays.append(seconds)
            return later(0.0 if seconds == DELAY else seconds, call)

        within(server, lambda: setattr(loop, "later", noted))
        with connected(server) as wire:
            assert said(begun(wire), plain(password="wrong")).error_code == FAILED
    assert delays.count(DELAY) == 1


def test_who_takes_too_long_is_cut_off(store: segstore.Store) -> None:
    with serving(store, **SASL, connection_setup_max_ms=50) as server:
        wires = [connected(server), begun(connected(server))]
        assert all(wire.is_closed() for wire in wires)
        until(lambda: not connections(server))
        for wire in wires:
            wire.close()
    with serving(store, **SASL, connection_setup_max_ms=2000) as server, connected(server) as wire:
        assert said(begun(wire), plain()).error_code == 0
        (held,) = connections(server)
        assert held._setup is None  # the time counts no more


# --- sessions that end (KIP-368) -------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that sessions see; they pass when a test says so."""
    from segstore.server.security import sasl

    now = [1000.0]
    monkeypatch.setattr(sasl.SaslSession.__init__, "__defaults__", (lambda: now[0],))
    return now


def test_a_client_authenticates_anew(store: segstore.Store, clock: list[float]) -> None:
    with serving(store, **SASL, connections_max_reauth_ms=60_000) as server, connected(server) as wire:
        for _ in range(3):
            assert said(begun(wire), plain()).session_lifetime_ms == 60_000
            clock[0] += 59
            assert wire.ask(Api.METADATA, 9, topics=None).topics == []
        clock[0] += 2  # too late for anything else, but not for this
        assert said(begun(wire), plain()).error_code == 0
        early = wire.ask(Api.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        assert early.error_code == Code.ILLEGAL_SASL_STATE
        clock[0] += 61
        wire.send(Api.METADATA, 9, topics=None)
        assert wire.is_closed()


ANEW: dict[str, tuple[str, bytes, bool]] = {
    "another principal": ("PLAIN", plain("bob", "hidden"), False),
    "a wrong password": ("PLAIN", plain(password="wrong"), False),
    "another mechanism": ("SCRAM-SHA-256", b"", True),
}


@pytest.mark.parametrize(("mechanism", "token", "at_once"), ANEW.values(), ids=ANEW)
def test_who_becomes_another_is_refused(
    store: segstore.Store, clock: list[float], mechanism: str, token: bytes, at_once: bool
) -> None:
    with serving(store, **SASL, connections_max_reauth_ms=60_000) as server, connected(server) as wire:
        assert said(begun(wire), plain()).error_code == 0
        clock[0] += 10
        shaken = wire.ask(Api.SASL_HANDSHAKE, 1, mechanism=mechanism)
        assert shaken.error_code == (Code.UNSUPPORTED_SASL_MECHANISM if at_once else 0)
        if not at_once:
            assert said(wire, token).error_code == FAILED
        assert wire.is_closed()


# --- rights by principal ---------------------------------------------------------------------------


def test_each_connection_has_the_rights_of_its_principal(store: segstore.Store) -> None:
    store.create_topic("t")
    allow = ["User:alice: describe topic t"]
    with serving(store, **SASL, allow=allow) as server, connected(server) as alice, connected(server) as bob:
        assert said(begun(alice), plain()).error_code == 0
        assert said(begun(bob), plain("bob", "hidden")).error_code == 0
        assert [each.name for each in alice.ask(Api.METADATA, 9, topics=None).topics] == ["t"]
        assert bob.ask(Api.METADATA, 9, topics=None).topics == []


def test_a_test_s_broker_notes_no_secrets() -> None:
    with Broker(**SASL) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with WireClient(host, int(port)) as wire:
            assert said(begun(wire), plain()).error_code == 0
        (noted,) = [each for each in broker.requests if each.api is Api.SASL_AUTHENTICATE]
    assert noted.fields == {"auth_bytes": len(plain())}


def test_any_token_is_judged(rng: random.Random) -> None:
    """Whatever a token is, an exchange answers it or refuses it, and nobody enters by chance."""
    held = of_password("SCRAM-SHA-256", "secret", 1)
    for _ in range(2000):
        exchange: Any = PlainExchange(Users(USERS))
        client = ScramClient("sha256", "alice", "wrong")
        if rng.random() < 0.7:
            exchange = ScramExchange("SCRAM-SHA-256", lambda name: held)
        sound = [plain(password="wrong"), client.first(), b"c=biws,r=x,p=AAAA", b""]
        with suppress(AuthenticationError):
            if rng.random() < 0.5:
                first = exchange.respond(client.first())
                exchange.respond(mutated(client.final(first), rng))
            else:
                exchange.respond(mutated(rng.choice(sound), rng))
        assert exchange.principal is None


def mutated(token: bytes, rng: random.Random) -> bytes:
    changed = bytearray(token)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(changed) + 1)
        if rng.random() < 0.5:
            changed[at:at] = rng.randbytes(rng.randrange(5))
        else:
            del changed[at : at + rng.randrange(5)]
    return bytes(changed)
