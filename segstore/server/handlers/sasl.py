"""SaslHandshake and SaslAuthenticate: the two requests by which a client authenticates (KIP-43, KIP-152,
KIP-368).

Source: Kafka's SaslServerAuthenticator. ApiVersions lists version 0 of SaslHandshake, because old clients
require it. But a request of version 0 is refused, because the client would then send its tokens without
request headers. Threads: handlers run in the loop's thread; a worker thread checks tokens, because a check
may compute for long, or call the application's code.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from segstore.errors import copy_of
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.notices import Notices, shown
from segstore.server.request import LATER, Later, Request
from segstore.server.security.failure import AuthenticationError
from segstore.server.security.sasl import SaslSession, SaslState

from .working import work

_Shaken = structs("SaslHandshakeResponse")
_Authenticated = structs("SaslAuthenticateResponse")
_WITH_HEADERS = 1


def sasl_handshake(node: Node, request: Request) -> Any:
    """Begin an authentication by the requested mechanism, and answer with the enabled mechanisms."""
    session = request.channel.sasl
    if session is None:
        return _Shaken(error_code=Code.ILLEGAL_SASL_STATE)
    answer = _Shaken(mechanisms=list(session.sasl.mechanisms))
    if request.version < _WITH_HEADERS:
        session.fail()
        answer.error_code = Code.UNSUPPORTED_VERSION
    else:
        answer.error_code = session.begin(request.body.mechanism)
    if session.state is SaslState.FAILED:
        _warn(node, request, "its SASL handshake is not served", request.body.mechanism, "")
        return _fail(node, request, session, answer)
    return answer


def sasl_authenticate(node: Node, request: Request) -> Any:
    """Check a client's token in a worker thread, and answer with the server's next token, or an error."""
    session = request.channel.sasl
    if session is None or session.state is not SaslState.TOKENS:
        return _Authenticated(
            error_code=Code.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication",
        )
    token = bytes(request.body.auth_bytes)
    return work(node, request, partial(session.respond, token), partial(_judged, node, request, session))


def _judged(node: Node, request: Request, session: SaslSession, result: bytes | BaseException) -> None:
    try:
        if isinstance(result, BaseException):
            raise copy_of(result)
        lifetime = session.finish()
    except AuthenticationError as error:
        answer = _Authenticated(error_code=Code.SASL_AUTHENTICATION_FAILED, error_message=str(error))
        _warn(node, request, str(error), session.mechanism, session.name)
        _fail(node, request, session, answer)
    # The error comes from the application or the store: its text may contain secrets, so only its type is
    # logged.
    except Exception as error:
        answer = _Authenticated(
            error_code=Code.SASL_AUTHENTICATION_FAILED, error_message="Authentication failed"
        )
        _warn(node, request, type(error).__name__, session.mechanism, session.name, logging.ERROR)
        _fail(node, request, session, answer)
    else:
        request.answer(_Authenticated(error_message=None, auth_bytes=result, session_lifetime_ms=lifetime))


def _warn(
    node: Node, request: Request, why: str, mechanism: str, name: str, level: int = logging.WARNING
) -> None:
    """Log a failed authentication, at most once a minute for the same peer and user."""
    who = f"of user {shown(name)} " if name else ""
    message = "an authentication by %s %sfailed (from %s): %s"
    peer = request.channel.peer
    values = shown(mechanism), who, peer, why
    node.part(Notices).log("SASL", peer, message, *values, user=name, level=level)


def _fail(node: Node, request: Request, session: SaslSession, answer: Any) -> Later:
    """After `failed_delay` send the answer and close the connection, to slow down guesses of passwords
    (Kafka: DelayedAuthenticationFailureClose).
    """
    session.fail()

    def end() -> None:
        request.answer(answer)
        request.channel.close()

    node.loop.later(session.sasl.failed_delay, end)
    return LATER


HANDLERS = {Api.SASL_HANDSHAKE: sasl_handshake, Api.SASL_AUTHENTICATE: sasl_authenticate}
