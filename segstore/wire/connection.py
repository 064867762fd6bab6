"""`BrokerConnection`: a blocking connection to one broker, with Kafka's framing, negotiated versions, TLS and
SASL (Kafka: NetworkClient, SaslClientAuthenticator; KIP-35, KIP-43, KIP-152).

Nothing is on disk. Threads: only one thread at a time may send requests. Any thread may call `abort`; the
call that waits for an answer then fails.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import Any, NamedTuple

from segstore.errors import (
    AuthenticationFailedError,
    DisconnectedError,
    InvalidRequestError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from segstore.idle_files import with_descriptors
from segstore.protocol.codec import decode, encode, structs
from segstore.protocol.definitions import message
from segstore.protocol.error_codes import Code, broker_error
from segstore.protocol.primitives import behind_tags
from segstore.wire.sasl import authenticate
from segstore.wire.settings import WireConfig

_INT32 = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_ID_AT, _LEAST, _ROOM = 8, 8, 1 << 16
"""_ID_AT: the byte position of the correlation id in a request; the request's size field is at position 0.
_LEAST: the bytes of the smallest answer, including the size field. _ROOM: the largest number of bytes of an
answer that the first receiving call returns.
"""
_NO_ROOM = memoryview(b"")
_VERSIONS, _HANDSHAKE = "ApiVersions", "SaslHandshake"
_HANDSHAKE_VERSION = 1
"""The version of SaslHandshake. After a handshake of version 0, the SASL tokens would have no Kafka
headers.
"""
_CERTIFICATE_ALERTS = re.compile("ALERT.*(CERT|UNKNOWN_CA|ACCESS_DENIED)")
"""Matches the `reason` of an OpenSSL error if a broker has refused the client's certificate. With TLS 1.3 a
broker checks the client's certificate after the handshake (RFC 8446, 4.6.2). So the client reads the broker's
alert when it expects the first answer (Kafka: SslTransportLayer).
"""
_NEWEST_USED = {"OffsetCommit": 9, "OffsetFetch": 9}
"""{API: the newest version that is used}. In newer versions topics have ids instead of names, and the callers
don't know the ids.
"""


class Address(NamedTuple):
    """The address at which a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Coming(NamedTuple):
    """An answer to `api` that has begun to arrive. `here` has the answer's first bytes, and `size` is the
    length of the whole answer. The size field is in neither. `here` is valid until the next call of the
    connection.
    """

    api: str
    limit_ms: int
    size: int
    here: memoryview


class BrokerConnection:
    """One connection. `context` is the TLS context, or None for a connection without TLS. When the
    constructor returns, the connection is encrypted and authenticated if the settings require that.

    The constructor raises DisconnectedError, RequestTimedOutError, AuthenticationFailedError,
    UnsupportedVersionError.
    """

    def __init__(self, address: Address, config: WireConfig, context: ssl.SSLContext | None) -> None:
        self.address, self._config = address, config
        self._correlation_id, self._room, self._large = 0, bytearray(), _NO_ROOM
        self._versions: dict[int, tuple[int, int]] = {}
        self._deadline = time.monotonic() + config.socket_connection_setup_timeout_ms / 1000
        self._aborted = False
        self._socket = self._connect()
        try:
            if context is not None:
                self._socket = self._encrypted(context)
            self._negotiate()
            if config.uses_sasl:
                self._authenticate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._socket.close()

    def abort(self) -> None:
        """If another thread waits for an answer in a call of this connection, make that call raise
        DisconnectedError.
        """
        self._aborted = True
        with suppress(OSError):
            # The plain socket's method is called, because another thread may be in a call of the TLS socket.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def version(self, api: str) -> int:
        """Return the newest version of an API that the broker and this client have in common. Raises
        UnsupportedVersionError.
        """
        definition = message(f"{api}Request")
        theirs = self._versions.get(definition.api_key)
        low, high = definition.valid
        high = _NEWEST_USED.get(api, high)
        common = min(high, theirs[1]) if theirs is not None else -1
        if theirs is None or common < max(low, theirs[0]):
            has = "does not have it" if theirs is None else f"has {theirs[0]} to {theirs[1]}"
            raise UnsupportedVersionError(
                f"broker {self.address} {has}: {api}, of which versions {low} to {high} are known here"
            )
        return common

    def has(self, api: str) -> bool:
        """Return whether the broker and this client have a version of an API in common."""
        try:
            return self.version(api) >= 0
        except UnsupportedVersionError:
            return False

    def ask(self, api: str, **fields: Any) -> Any:
        """Send a request, in the newest common version of the API, and return the answer's body. Raises
        DisconnectedError, RequestTimedOutError, and UnsupportedVersionError if there is no common version.
        """
        return self.ask_in(api, self.version(api), structs(f"{api}Request")(**fields))

    def ask_in(self, api: str, version: int, body: Any, extra_ms: int = 0) -> Any:
        """Send a request in this version, and return the answer's body. `extra_ms` is added to the time-out,
        because the broker may wait for `extra_ms` before it answers.
        """
        limit = self._config.request_timeout_ms + extra_ms
        self._deadline = time.monotonic() + limit / 1000
        return self._exchange(api, version, body, f"{api} was not answered in {limit} ms")

    def pass_on(self, api: str, request: bytearray, extra_ms: int = 0) -> memoryview:
        """Send a request that `encoded` has made, with a new correlation id. Return the answer, without the
        size field, for `decoded`. The answer is valid until the next call.

        Until the first bytes of the answer arrive, the time-out limits each call of the socket. After that,
        the time-out limits the time until all remaining bytes have arrived.
        """
        return self.rest(self.begin(api, request, extra_ms))

    def begin(self, api: str, request: bytearray, extra_ms: int = 0) -> Coming:
        """Send a request that `encoded` has made, with a new correlation id. Wait until the answer begins to
        arrive, and return a `Coming` with the answer's first bytes.
        """
        limit = self._config.request_timeout_ms + extra_ms
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        _INT32.pack_into(request, _ID_AT, self._correlation_id)
        try:
            # The time-out is not set to the same value again, because setting it costs a system call.
            if self._socket.gettimeout() != limit / 1000:
                self._socket.settimeout(limit / 1000)
            self._socket.sendall(request)
            size, here = self._begun()
        except (OSError, ValueError) as error:
            raise self._ended(api, f"{api} was not answered in {limit} ms", error) from error
        return Coming(api, limit, size, self._checked(here))

    def rest(self, coming: Coming) -> memoryview:
        """Receive the remaining bytes of an answer, and return the whole answer. The answer is valid until
        the next call. Raises the errors of `ask`.
        """
        api, limit, size, here = coming
        if len(here) == size:
            # The answer is small, so the buffer of large answers is freed.
            self._large = _NO_ROOM
            return here
        late = f"an answer was not received in {limit} ms"
        self._deadline = time.monotonic() + limit / 1000
        if size > len(self._large):
            self._large = memoryview(bytearray(size))
        whole = self._large[:size]
        whole[: len(here)] = here
        try:
            self._fill(whole, len(here), late)
        except (OSError, ValueError) as error:
            raise self._ended(api, late, error) from error
        return whole

    def more(self, coming: Coming, room: memoryview) -> int:
        """Receive the next bytes of an answer into `room`, and return the number of bytes. The time-out
        limits each call. Raises the errors of `ask`.
        """
        try:
            return self._receive_some(room)
        except (OSError, ValueError) as error:
            late = f"an answer was not received in {coming.limit_ms} ms"
            raise self._ended(coming.api, late, error) from error

    def encoded(self, api: str, version: int, body: Any) -> bytearray:
        """Return a request as bytes, beginning with its size field."""
        return bytearray(self._request(api, version, body))

    def decoded(self, api: str, version: int, answer: memoryview) -> Any:
        """Return the body of an answer that has no size field. Raises DisconnectedError."""
        return self._body(api, version, answer)

    # --- making it --------------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        limit = self._config.socket_connection_setup_timeout_ms
        try:
            made = with_descriptors(lambda: socket.create_connection(self.address, timeout=limit / 1000))
        except TimeoutError as error:
            raise RequestTimedOutError(f"{self.address}: no connection within {limit} ms") from error
        except OSError as error:
            raise DisconnectedError(f"{self.address}: no connection: {error.strerror or error}") from error
        except (ValueError, OverflowError) as error:
            # A broker may advertise an address that is no valid one.
            raise DisconnectedError(f"{self.address!s:.300}: no address: {error}") from error
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def _encrypted(self, context: ssl.SSLContext) -> socket.socket:
        self._bound("TLS handshake")
        try:
            return context.wrap_socket(self._socket, server_hostname=self.address.host)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailedError(
                f"{self.address}: the broker's certificate is not trusted: {error.verify_message}"
            ) from error
        except TimeoutError as error:
            raise self._timed_out("the TLS handshake was not finished in time") from error
        except OSError as error:
            self._check_trusted(error)
            why = getattr(error, "reason", None) or error.strerror or error
            raise DisconnectedError(f"{self.address}: the TLS handshake failed: {why}") from error

    def _negotiate(self) -> None:
        """Ask the broker for its versions of all APIs (KIP-35)."""
        version = message("ApiVersionsRequest").valid.high
        body = structs("ApiVersionsRequest")(client_software_name="segstore", client_software_version="1")
        answer = self._exchange(_VERSIONS, version, body, self._setup_late(_VERSIONS))
        # A broker that does not know the request's version answers with the versions that it knows.
        if answer.error_code == Code.UNSUPPORTED_VERSION:
            known = [each.max_version for each in answer.api_keys if each.api_key == 18]
            version = min(version, known[0] if known else 0)
            answer = self._exchange(_VERSIONS, version, body, self._setup_late(_VERSIONS))
        if answer.error_code:
            raise broker_error(answer.error_code, f"{self.address}: {_VERSIONS}")
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    def _authenticate(self) -> None:
        mechanism = self._config.sasl_mechanism
        body = structs("SaslHandshakeRequest")(mechanism=mechanism)
        shaken = self._exchange(_HANDSHAKE, _HANDSHAKE_VERSION, body, self._setup_late(_HANDSHAKE))
        if shaken.error_code:
            raise AuthenticationFailedError(
                f"{self.address}: the broker does not take sasl.mechanism={mechanism}, but "
                f"{', '.join(shaken.mechanisms) or 'none'}"
            )
        authenticate(mechanism, self._config.login, self._token)

    def _token(self, token: bytes) -> bytes:
        api = "SaslAuthenticate"
        body = structs("SaslAuthenticateRequest")(auth_bytes=token)
        answer = self._exchange(api, self.version(api), body, self._setup_late(api))
        if answer.error_code:
            raise AuthenticationFailedError(f"{self.address}: {answer.error_message or 'SASL failed'}")
        return bytes(answer.auth_bytes)

    def _setup_late(self, api: str) -> str:
        return f"{api} was not answered in {self._config.socket_connection_setup_timeout_ms} ms"

    # --- exchanging -------------------------------------------------------------------------------

    def _exchange(self, api: str, version: int, body: Any, late: str) -> Any:
        """Send a request, and return the answer's body. `late` is the message of the error that is raised
        after a time-out. After an error the connection must not be used again.
        """
        request = self._request(api, version, body)
        try:
            self._bound(late)
            self._socket.sendall(request)
            data = self._receive(late)
        except (OSError, ValueError) as error:
            raise self._ended(api, late, error) from error
        return self._body(api, version, self._checked(data))

    def _check_trusted(self, error: Exception) -> None:
        """Raise AuthenticationFailedError if `error` says that the broker refuses this client's certificate,
        or that the client has none.
        """
        reason = getattr(error, "reason", None) or ""
        if isinstance(error, ssl.SSLError) and _CERTIFICATE_ALERTS.search(reason):
            given = self._config.ssl_certificate_location
            shown = f"that of ssl.certificate.location={given}" if given else "a client without one"
            raise AuthenticationFailedError(
                f"{self.address}: the broker wants a certificate that it trusts, and refuses {shown}: "
                f"{reason}"
            ) from error

    def _ended(self, api: str, late: str, error: Exception) -> DisconnectedError | RequestTimedOutError:
        """Return the error that the caller raises for `error`, an error of the socket. `late` is the message
        for a time-out. Raises AuthenticationFailedError if the broker refuses the client's certificate.
        """
        if isinstance(error, TimeoutError):
            return self._timed_out(late)
        self._check_trusted(error)
        why = "it was ended here" if self._aborted else getattr(error, "strerror", None) or error
        return DisconnectedError(f"{self.address}: the connection has ended: {why} ({api})")

    def _request(self, api: str, version: int, body: Any) -> bytes:
        definition = message(f"{api}Request")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        client_id = None if self._config.client_id is None else self._config.client_id.encode()
        out = bytearray(4)
        size = -1 if client_id is None else len(client_id)
        out += _HEADER.pack(definition.api_key, version, self._correlation_id, size)
        out += client_id or b""
        if version in definition.flexible:
            # The header has no tagged fields.
            out.append(0)
        encode(body, version, out)
        _INT32.pack_into(out, 0, len(out) - 4)
        return bytes(out)

    def _receive(self, late: str) -> memoryview:
        return memoryview(self._exactly(self._size(self._exactly(4, late)), late))

    def _size(self, data: bytearray) -> int:
        (size,) = _INT32.unpack_from(data)
        most = self._config.receive_message_max_bytes
        if not 4 <= size <= most:
            raise OSError(f"an answer of {size} bytes: receive.message.max.bytes={most}")
        return int(size)

    def _begun(self) -> tuple[int, memoryview]:
        """Receive the beginning of an answer. Return (size of the whole answer, first bytes of the answer);
        neither includes the size field. The bytes are in a buffer that the next call reuses.
        """
        room = self._room = self._room or bytearray(_ROOM)
        # Most answers arrive completely with the first system call. If more calls are needed, the time-out
        # limits each of them.
        got = self._receive_some(room)
        while got < _LEAST:
            got += self._receive_some(memoryview(room)[got:])
        size = self._size(room)
        if got - _INT32.size > size:
            raise OSError(f"{got - _INT32.size - size} bytes came behind an answer")
        return size, memoryview(room)[_INT32.size : got]

    def _exactly(self, size: int, late: str) -> bytearray:
        """Receive exactly `size` bytes."""
        data = bytearray(size)
        self._fill(memoryview(data), 0, late)
        return data

    def _fill(self, room: memoryview, at: int, late: str) -> None:
        """Receive into `room` from byte `at` on, until `room` is full."""
        while at < len(room):
            self._bound(late)
            at += self._receive_some(room[at:])

    def _receive_some(self, room: bytearray | memoryview) -> int:
        """Receive the available bytes into `room`, and return their number, which is at least 1."""
        got = self._socket.recv_into(room)
        if not got:
            raise OSError("the broker has closed it")
        return got

    def _bound(self, late: str) -> None:
        """Set the socket's time-out, so that the next call ends at the deadline. Raises TimeoutError after
        the deadline.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(late)
        self._socket.settimeout(left)

    def _timed_out(self, late: str) -> RequestTimedOutError:
        return RequestTimedOutError(f"{self.address}: {late}")

    def _checked(self, data: memoryview) -> memoryview:
        (correlation_id,) = _INT32.unpack_from(data)
        if correlation_id != self._correlation_id:
            raise DisconnectedError(
                f"{self.address}: an answer to request {correlation_id} came, not to {self._correlation_id}"
            )
        return data

    def _body(self, api: str, version: int, data: memoryview) -> Any:
        name, at = f"{api}Response", 4
        try:
            if api == _VERSIONS:
                return self._api_versions(version, data[at:])
            if version in message(f"{api}Request").flexible:
                at = behind_tags(data, at)
            return decode(name, version, data[at:])
        except (InvalidRequestError, IndexError) as error:
            raise DisconnectedError(f"{self.address}: no answer of Kafka's: {error}") from error

    @staticmethod
    def _api_versions(version: int, data: memoryview) -> Any:
        """Return the body of an answer to ApiVersions. The header of such an answer never has tagged fields.
        If the error is UNSUPPORTED_VERSION, the answer is in version 0.
        """
        (error,) = struct.unpack_from(">h", data)
        return decode("ApiVersionsResponse", 0 if error == Code.UNSUPPORTED_VERSION else version, data)
