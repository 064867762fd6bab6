"""Requests to an endpoint of HTTP, and what Prometheus' own parsers make of its metrics."""

from __future__ import annotations

import gzip
import http.client
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from waiting import PATIENCE

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
Labels = frozenset[tuple[str, str]]


class Got(NamedTuple):
    """An answer; `body` is not compressed."""

    status: int
    headers: Mapping[str, str]
    body: str


def get(address: str | None, path: str, method: str = "GET", **headers: str) -> Got:
    """Ask an endpoint at "HOST:PORT"; underscores in names of headers are hyphens."""
    assert address is not None
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): v for name, v in headers.items()})
        answer = connection.getresponse()
        body, told = answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()
    if told.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    return Got(answer.status, told, body.decode())


def samples(text: str) -> dict[tuple[str, Labels], float]:
    """Return all samples of a text, by name and labels, of one of both formats."""
    is_open = text.endswith("# EOF\n")
    read = openmetrics.text_string_to_metric_families if is_open else text_string_to_metric_families
    names, found = [], {}
    for family in read(text):
        names.append(family.name)
        for each in family.samples:
            key = each.name, frozenset(each.labels.items())
            assert key not in found
            found[key] = each.value
    assert len(names) == len(set(names))
    return found


def scrape(address: str | None, **headers: str) -> dict[tuple[str, Labels], float]:
    """Return all samples that an endpoint has now."""
    got = get(address, "/metrics", **headers)
    assert got.status == 200, got
    return samples(got.body)


def value(found: Mapping[tuple[str, Labels], float], name: str, **labels: str) -> float | None:
    """Return one sample; None if it is not there."""
    return found.get((name, frozenset(labels.items())))


@contextmanager
def connected(address: str | None) -> Iterator[socket.socket]:
    """Connect, and send nothing yet."""
    assert address is not None
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as sock:
        yield sock


def read_all(sock: socket.socket) -> bytes:
    """Return what comes until the other end has closed."""
    found = bytearray()
    while piece := sock.recv(1 << 16):
        found += piece
    return bytes(found)
