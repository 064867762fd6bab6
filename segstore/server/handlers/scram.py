"""DescribeUserScramCredentials and AlterUserScramCredentials: the SCRAM credentials of users (KIP-554).

Source: Kafka's ScramControlManager and ScramImage. Clients send salted passwords. The server derives keys
from the passwords, and the store has only these keys. Threads: handlers run in the loop's thread; a worker
reads and writes credentials.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from segstore.coordinator.credentials import scram_credentials
from segstore.errors import SegstoreError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.protocol.scram_keys import LEAST_ITERATIONS, MOST_ITERATIONS
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Later, Request
from segstore.server.security.scram import CODES, of_salted
from segstore.storage.meta.scram_credentials import Credentials, ScramCredential

from .refusal import REFUSED, Refusal, code_and_message
from .working import in_worker

_Described = structs("DescribeUserScramCredentialsResponse")
_Altered = structs("AlterUserScramCredentialsResponse")
_Changes = dict[tuple[str, str], ScramCredential | None]


# --- DescribeUserScramCredentials -----------------------------------------------------------------


def describe_user_scram_credentials(node: Node, request: Request) -> Later:
    """Answer with the mechanisms and iterations of the requested users, or of all users if the request names
    no user.
    """
    return in_worker(node, request, lambda: _describe(node, request.body))


def _describe(node: Node, body: Any) -> Any:
    held = scram_credentials(node.store).all()
    times = Counter(each.name for each in body.users or ())
    results = [_described(name, times[name], held) for name in times or sorted(held)]
    return _Described(error_message=None, results=results)


def _described(name: str, times: int, held: Credentials) -> Any:
    kind = _Described.DescribeUserScramCredentialsResult
    if times > 1:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return kind(user=name, error_code=Code.DUPLICATE_RESOURCE, error_message=message)
    if name not in held:
        message = f"Attempt to describe a user credential that does not exist: {name}"
        return kind(user=name, error_code=Code.RESOURCE_NOT_FOUND, error_message=message)
    infos = [
        _Described.CredentialInfo(mechanism=code, iterations=held[name][mechanism].iterations)
        for code, mechanism in CODES.items()
        if mechanism in held[name]
    ]
    return kind(user=name, error_message=None, credential_infos=infos)


# --- AlterUserScramCredentials --------------------------------------------------------------------


def alter_user_scram_credentials(node: Node, request: Request) -> Later:
    """Set and delete credentials. If one change of a user is invalid, all changes of that user are
    refused.
    """
    return in_worker(node, request, lambda: _alter(node, request.body))


def _alter(node: Node, body: Any) -> Any:
    try:
        store = scram_credentials(node.store)
        errors, changes = _judged(body, store.all())
        if changes:
            store.alter(changes)
    except SegstoreError as error:
        errors = dict.fromkeys(
            (each.name for each in [*body.deletions, *body.upsertions]), code_and_message(error)
        )
    kind = _Altered.AlterUserScramCredentialsResult
    return _Altered(
        results=[
            kind(user=name, error_code=code, error_message=text) for name, (code, text) in errors.items()
        ]
    )


def _judged(body: Any, held: Credentials) -> tuple[dict[str, tuple[Code, str | None]], _Changes]:
    """Return ((code, message) by user, changes of the users without an error)."""
    asked = [*body.deletions, *body.upsertions]
    times = Counter((each.name, each.mechanism) for each in asked)
    errors: dict[str, tuple[Code, str | None]] = {each.name: (Code.NONE, None) for each in asked}
    changes: _Changes = {}
    for each in asked:
        try:
            if times[each.name, each.mechanism] > 1:
                raise Refusal(
                    Code.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            mechanism = _mechanism(each)
            if hasattr(each, "salted_password"):
                changes[each.name, mechanism] = _made(each, mechanism)
            else:
                _check_removable(each, mechanism, held)
                changes[each.name, mechanism] = None
        except REFUSED as error:
            errors[each.name] = code_and_message(error)
    return errors, {at: made for at, made in changes.items() if errors[at[0]][0] is Code.NONE}


def _mechanism(asked: Any) -> str:
    if not asked.name:
        raise Refusal(Code.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if asked.mechanism not in CODES:
        raise Refusal(Code.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return CODES[asked.mechanism]


def _made(asked: Any, mechanism: str) -> ScramCredential:
    if not LEAST_ITERATIONS <= asked.iterations <= MOST_ITERATIONS:
        few = "few" if asked.iterations < LEAST_ITERATIONS else "many"
        raise Refusal(Code.UNACCEPTABLE_CREDENTIAL, f"Too {few} iterations")
    if not asked.salt or not asked.salted_password:
        raise Refusal(Code.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty")
    return of_salted(mechanism, bytes(asked.salt), asked.iterations, bytes(asked.salted_password))


def _check_removable(asked: Any, mechanism: str, held: Credentials) -> None:
    if mechanism not in held.get(asked.name, {}):
        message = "Attempt to delete a user credential that does not exist"
        raise Refusal(Code.RESOURCE_NOT_FOUND, message)


HANDLERS = {
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
    Api.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
}
