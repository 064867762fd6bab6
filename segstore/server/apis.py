"""The APIs of Kafka's wire protocol, their served versions, and the encoding of requests and responses, with
their headers (KIP-482).

Source: org.apache.kafka.common.protocol.ApiKeys, and the version ranges of a 4.4 broker. Threads: any; no
state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

from segstore.errors import InvalidRequestError, UnsupportedVersionError
from segstore.protocol.codec import Slices, decode, encode
from segstore.protocol.definitions import Versions, message
from segstore.protocol.primitives import behind_tags


class Api(IntEnum):
    """The served APIs, by Kafka's api keys."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    BEGIN_QUORUM_EPOCH = 53
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92

    @property
    def message(self) -> str:
        """The name of the API's messages, without "Request" and "Response"."""
        return _MESSAGES[self]


_MESSAGES = {api: "".join(map(str.capitalize, api.name.split("_"))) for api in Api}
_REQUESTS = {api: f"{name}Request" for api, name in _MESSAGES.items()}
_BY_KEY = {int(api): api for api in Api}
_HEADER, _SHORT = struct.Struct(">hhi"), struct.Struct(">h")


class RequestHeader(NamedTuple):
    """A request's header; `body_at` is the body's position in the request, -1 if the API's version in the
    header is not served.
    """

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    body_at: int


@cache
def served(api: Api) -> Versions:
    """Return the lowest and highest version of an API whose requests can be decoded and answered."""
    return message(f"{api.message}Request").valid


def advertised(api: Api) -> Versions:
    """Return the lowest and highest version that an answer to ApiVersions has for an API.

    Produce is advertised from version 0 on, although versions 0 to 2 can't be served: older releases of
    librdkafka compress records only if these versions are advertised (KAFKA-18659).
    """
    return served(api)._replace(low=0) if api is Api.PRODUCE else served(api)


@cache
def _is_flexible(api: Api, version: int) -> bool:
    return version in message(f"{api.message}Request").flexible


def read_header(data: memoryview) -> RequestHeader:
    """Return the header of a request; `data` is the request without its size field.

    Raises InvalidRequestError if the header is damaged, and UnsupportedVersionError if the api key is not
    served. If the API's version is not served, the rest of the header can't be read: `client_id` is None, and
    `body_at` is -1.
    """
    try:
        key, version, correlation_id = _HEADER.unpack_from(data)
    except struct.error as error:
        raise InvalidRequestError("a request has no header") from error
    api = _BY_KEY.get(key)
    if api is None:
        raise UnsupportedVersionError(f"api key {key} is not served")
    low, high = served(api)
    if not low <= version <= high:
        return RequestHeader(api, version, correlation_id, None, -1)
    return RequestHeader(api, version, correlation_id, *_client_id(data, _is_flexible(api, version)))


def _client_id(data: memoryview, flexible: bool) -> tuple[str | None, int]:
    """Return (client id, position of the body). The client id is never encoded as a compact string."""
    try:
        size, at = _SHORT.unpack_from(data, _HEADER.size)[0], _HEADER.size + _SHORT.size
        client_id = None if size == -1 else str(data[at : at + size], "utf-8")
        at += max(size, 0)
        if flexible:
            at = behind_tags(data, at)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise InvalidRequestError("a request's header is damaged") from error
    if size < -1 or at > len(data):
        raise InvalidRequestError("a request's header is damaged")
    return client_id, at


def read_body(header: RequestHeader, data: memoryview) -> Any:
    """Return a request's decoded body. Raises InvalidRequestError, UnsupportedVersionError."""
    return decode(_REQUESTS[header.api], header.version, data[header.body_at :])


def write_response(api: Api, version: int, correlation_id: int, body: Any) -> tuple[bytearray, Slices]:
    """Return (bytes of the response with its size field and header, (position, file stretch) pairs). Raises
    InvalidArgumentError.

    A position is an index of the bytes: the file stretch must be sent right before the byte with this index.
    The size field counts the bytes of the file stretches too.
    """
    out = bytearray(8)
    slices: Slices = []
    # The header of an ApiVersions response never has tagged fields, so that every client can read it.
    if _is_flexible(api, version) and api is not Api.API_VERSIONS:
        out.append(0)
    encode(body, version, out, slices)
    size = len(out) - 4
    for _, part in slices:
        size += len(part)
    struct.pack_into(">ii", out, 0, size, correlation_id)
    return out, slices


def ranges(apis: Iterable[Api]) -> list[tuple[int, int, int]]:
    """Return (api key, lowest, highest advertised version) of APIs, sorted by key."""
    return [(int(api), *advertised(api)) for api in sorted(apis)]


@cache
def has_error_code(api: Api, version: int) -> bool:
    """Return whether an API's response has a top-level error code in this version."""
    name = f"{api.message}Response"
    return any(
        field.name == "error_code" and version in field.versions for field in message(name).structs[name]
    )
