from __future__ import annotations

import pytest

from segstore.archiving.archive_uri import completed, redacted, without_secrets

URIS = {
    "/a/directory": "/a/directory",
    "a:b/directory?x=1": "a:b/directory?x=1",
    "file:///a/b": "file:///a/b",
    "s3://bucket/log": "s3://bucket/log",
    "s3://KEY:SECRET@bucket/log?region=eu&session_token=TOKEN": "s3://bucket/log?region=eu&session_token=***",
    "s3://KEY:SE@CRET@bucket": "s3://bucket",
    "s3://KEY:SEC/RE+T@bucket/log?region=eu": "s3://bucket/log?region=eu",
    "s3://KEY:SEC?RET@bucket/log": "s3://bucket/log",
    "s3://bucket/an@object?x=": "s3://bucket/an@object?x=",
    "hdfs://host:8020/an@object": "hdfs://host:8020/an@object",
    "hdfs://user@host:8020/log?kerb_ticket=T": "hdfs://user@host:8020/log?kerb_ticket=***",
    "abfs://box:PASS@account.dfs.core.windows.net/log": "abfs://box@account.dfs.core.windows.net/log",
    "abfs://:PASS@account.dfs.core.windows.net/log": "abfs://account.dfs.core.windows.net/log",
    "gs://anonymous@bucket/log": "gs://bucket/log",
}


@pytest.mark.parametrize("uri", URIS)
def test_a_uri_is_shown_without_its_secrets(uri: str) -> None:
    assert redacted(uri) == URIS[uri]
    assert redacted(redacted(uri)) == URIS[uri]


def test_no_secret_stays_in_a_message() -> None:
    uri = "s3://KEY:a%2Fb@bucket/log?token=T%3D1"
    told = without_secrets(f"can't open {uri}: a/b, a%2Fb, T=1", uri)
    assert told == "can't open s3://bucket/log?token=***: ***, ***, ***"


ENDPOINT = {"AWS_ENDPOINT_URL": "http://localhost:9000/", "AWS_REGION": "eu-1"}
COMPLETED = {
    "of no S3": ("gs://bucket", ENDPOINT, "gs://bucket"),
    "nothing known": ("s3://bucket/log", {}, "s3://bucket/log"),
    "all from the environment": (
        "s3://bucket/log",
        ENDPOINT,
        "s3://bucket/log?endpoint_override=localhost%3A9000&scheme=http&region=eu-1",
    ),
    "S3's own endpoint first": (
        "s3://bucket",
        {**ENDPOINT, "AWS_ENDPOINT_URL_S3": "https://s3.example"},
        "s3://bucket?endpoint_override=s3.example&scheme=https&region=eu-1",
    ),
    "the query first": (
        "s3://bucket?endpoint_override=host%3A1&region=here",
        ENDPOINT,
        "s3://bucket?endpoint_override=host%3A1&region=here",
    ),
    "an endpoint without a region": (
        "s3://k:s%2F@bucket?endpoint_override=host",
        {},
        "s3://k:s%2F@bucket?endpoint_override=host&region=us-east-1",
    ),
}


@pytest.mark.parametrize("case", COMPLETED)
def test_the_environment_completes_a_uri(case: str) -> None:
    uri, environment, expected = COMPLETED[case]
    assert completed(uri, environment) == expected
