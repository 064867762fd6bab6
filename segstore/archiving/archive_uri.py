"""URIs of archives: adds missing parameters from the environment, and removes secrets from texts.

`s3://KEY:SECRET@bucket/log` has a secret, and other URIs may have a secret in their query. No error, log
message or `repr` shows a secret. Threads: any; functions without state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

SHOWN = frozenset(
    {
        *("region", "scheme", "endpoint_override", "allow_bucket_creation", "allow_bucket_deletion"),
        *("allow_delayed_open", "tls_verify_certificates", "retry_limit_seconds", "replication"),
        *("blob_storage_authority", "blob_storage_scheme", "dfs_storage_authority", "dfs_storage_scheme"),
        *("buffer_size", "default_block_size", "enable_tls", "project_id", "smart_defaults"),
    }
)
"""The parameters of a query whose values are shown. The value of any other parameter may be a secret."""
HIDDEN = "***"
S3 = "s3"
_USERS = ("abfs", "abfss", "hdfs", "viewfs")
"""Schemes of URIs in which the text before the @ is a container or a user, and no secret."""


class _UriParts(NamedTuple):
    """Parts of a URI, percent-encoded as in the URI. `user` may contain a password, and `place` is host and
    path. `query` has (name, "=" or "", value) of each parameter.
    """

    scheme: str
    user: str
    place: str
    query: tuple[tuple[str, str, str], ...]


def is_uri(text: str) -> bool:
    """Return whether a text is a URI, not the path of a directory."""
    scheme, found, _ = text.partition("://")
    return bool(found) and scheme.replace("+", "").replace("-", "").isalnum()


def redacted(uri: str) -> str:
    """Return a URI without its password and keys, and with "***" for each value in its query that may be
    secret.
    """
    if not is_uri(uri):
        return uri
    parts = _parts(uri)
    name = parts.user.partition(":")[0]
    user = f"{name}@" if name and parts.scheme in _USERS else ""
    shown = "&".join(f"{name}{mark}{_shown(name, value)}" for name, mark, value in parts.query)
    return f"{parts.scheme}://{user}{parts.place}{'?' if shown else ''}{shown}"


def _parts(uri: str) -> _UriParts:
    """Return the parts of a URI. A "/" or "?" in the password need not be percent-encoded."""
    scheme, _, rest = uri.partition("://")
    first = re.split("[/?]", rest, maxsplit=1)[0]
    user = ""
    if "@" in first:
        user = first.rpartition("@")[0]
    elif ":" in first and not first.rpartition(":")[2].isdecimal():
        user = rest.rpartition("@")[0]
    place, _, query = (rest[len(user) + 1 :] if user else rest.removeprefix("@")).partition("?")
    return _UriParts(scheme, user, place, tuple(part.partition("=") for part in query.split("&") if part))


def _shown(name: str, value: str) -> str:
    return value if name in SHOWN or not value else HIDDEN


def without_secrets(text: str, uri: str) -> str:
    """Return `text` with `uri` redacted, and with "***" for each secret of `uri`."""
    text = text.replace(uri, redacted(uri))
    for secret in sorted(_secrets(uri), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _secrets(uri: str) -> set[str]:
    """Return the password and the values of the query that `redacted` hides, except single characters. Each
    is returned as in the URI, decoded, and percent-encoded.
    """
    if not is_uri(uri):
        return set()
    parts = _parts(uri)
    found = {parts.user.partition(":")[2], *(value for name, _, value in parts.query if name not in SHOWN)}
    spelled = {each for value in found for each in (value, unquote(value), quote(unquote(value)))}
    return {each for each in spelled if len(each) > 1}


def completed(uri: str, environment: Mapping[str, str]) -> str:
    """Return the URI of an S3 bucket with endpoint and region. If the query lacks them, they are taken from
    the environment variables of Amazon's own tools. Without a region pyarrow would ask Amazon for the
    bucket's region. Any other URI is returned unchanged.
    """
    parts = urlsplit(uri)
    if parts.scheme != S3:
        return uri
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if endpoint and "endpoint_override" not in query:
        scheme, _, place = endpoint.rpartition("://")
        query |= {"endpoint_override": place.rstrip("/"), **({"scheme": scheme} if scheme else {})}
    if region and "region" not in query:
        query["region"] = region
    elif "endpoint_override" in query:
        query.setdefault("region", "us-east-1")
    return urlunsplit(parts._replace(query=urlencode(query)))
