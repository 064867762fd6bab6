"""URIs of archives: what the environment adds to one, and how one is shown without its secrets.

`s3://KEY:SECRET@bucket/log` has a secret, and others may have one in their query: neither is in an error, a
message of the log, or a `repr`. Threads: any; functions without state.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

SHOWN = frozenset(
    {
        *("region", "scheme", "endpoint_override", "allow_bucket_creation", "allow_bucket_deletion"),
        *("allow_delayed_open", "tls_verify_certificates", "retry_limit_seconds", "replication"),
        *("blob_storage_authority", "blob_storage_scheme", "dfs_storage_authority", "dfs_storage_scheme"),
        *("buffer_size", "default_block_size", "enable_tls", "project_id", "smart_defaults"),
    }
)
"""What is shown of a query; any other value may be a secret."""
HIDDEN = "***"
S3 = "s3"
_CONTAINERS = ("abfs", "abfss")
"""Schemes whose URIs have a container before the @."""
_USERS = ("hdfs", "viewfs")


def is_uri(text: str) -> bool:
    """Return whether a text is a URI, and not a path of a directory."""
    scheme, found, _ = text.partition("://")
    return bool(found) and scheme.replace("+", "").replace("-", "").isalnum()


def redacted(uri: str) -> str:
    """Return a URI without passwords, keys, and values of a query that may be secret."""
    if not is_uri(uri):
        return uri
    before, _, rest = uri.partition("://")
    place, mark, query = rest.partition("?")
    host, slash, path = place.partition("/")
    user, at, host = host.rpartition("@")
    return f"{before}://{_shown_user(before, user) if at else ''}{host}{slash}{path}{mark}{_shown(query)}"


def _shown_user(scheme: str, user: str) -> str:
    name = user.partition(":")[0]
    return f"{name}@" if name and scheme in (*_CONTAINERS, *_USERS) else ""


def _shown(query: str) -> str:
    pairs = (part.partition("=") for part in query.split("&"))
    return "&".join(
        f"{name}{mark}{value if name in SHOWN else HIDDEN if mark else ''}" for name, mark, value in pairs
    )


def without_secrets(text: str, uri: str) -> str:
    """Return a message in which neither the URI nor one of its secrets stands."""
    text = text.replace(uri, redacted(uri))
    for secret in sorted(_secrets(uri), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _secrets(uri: str) -> set[str]:
    """Return the values that `redacted` leaves out, as they stand in the URI and as they are meant."""
    if not is_uri(uri):
        return set()
    place, _, query = uri.partition("://")[2].partition("?")
    user, at, _ = place.partition("/")[0].rpartition("@")
    found = {user.partition(":")[2]} if at else set()
    found |= {
        value
        for name, value in (part.split("=", 1) for part in query.split("&") if "=" in part)
        if name not in SHOWN
    }
    return {
        each for value in found for each in (value, unquote(value), quote(unquote(value))) if len(each) > 1
    }


def completed(uri: str, environment: Mapping[str, str]) -> str:
    """Return the URI of a bucket of S3 with endpoint and region from the environment, as Amazon's own tools
    have them, if its query has none: pyarrow would ask Amazon for the region of the bucket.
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
