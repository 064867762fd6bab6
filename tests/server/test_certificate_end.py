"""When a listener's certificate ends: as a metric, and as a line of the log at the start, at a reload, and
each day while little time is left.
"""

from __future__ import annotations

import logging
import re
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import trustme
from calls import FakeLoop
from serving import serving

import segstore
from segstore.server.network.certificate_watch import DAY, CertificateWatch
from segstore.server.security.certificate_end import not_after

NOW = datetime.now(timezone.utc).replace(microsecond=0)
AUTHORITY = trustme.CA()


def leaf(end: datetime, **options: object) -> trustme.LeafCert:
    return AUTHORITY.issue_cert("localhost", not_before=NOW - timedelta(days=900), not_after=end, **options)  # type: ignore[arg-type]


def der(made: trustme.LeafCert) -> bytes:
    return ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode())


ENDS = {
    "soon": NOW + timedelta(days=3),
    "over": NOW - timedelta(days=400),
    "the last UTCTime": datetime(2049, 12, 31, 23, 59, 59, tzinfo=timezone.utc),
    "the first GeneralizedTime": datetime(2050, 1, 1, tzinfo=timezone.utc),
    "never": datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc),
}


@pytest.mark.parametrize("key", trustme.KeyType)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_end_is_read(end: datetime, key: trustme.KeyType) -> None:
    assert not_after(der(leaf(end, key_type=key))) == end.timestamp()


def gauge(server: segstore.Server) -> dict[tuple[str, ...], float]:
    name = "segstore_certificate_not_after_timestamp_seconds"
    (samples,) = [samples for metric, _, samples in server.families() if metric.prometheus == name]
    return {each.labels: each.value for each in samples}


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    lines = [(each.levelno, each.getMessage()) for each in caplog.records]
    return [(level, re.split(",? at ", text)[0]) for level, text in lines if "certificate" in text]


def test_each_listener_has_its_own(store: segstore.Store, tmp_path: Path) -> None:
    ends = {"A": NOW + timedelta(days=40), "B": NOW + timedelta(days=50)}
    settings: dict[str, object] = {
        "listeners": "A://127.0.0.1:0,B://127.0.0.1:0,C://127.0.0.1:0",
        "listener_security_protocol_map": "A:SSL,B:SSL,C:PLAINTEXT",
    }
    leaf(ends["A"]).private_key_and_cert_chain_pem.write_to_path(tmp_path / "a")
    settings["listener_name_a_ssl_keystore_location"] = str(tmp_path / "a")
    second = leaf(ends["B"])
    settings["listener_name_b_ssl_keystore_key"] = second.private_key_pem.bytes().decode()
    chain = "".join(each.bytes().decode() for each in second.cert_chain_pems)
    settings["listener_name_b_ssl_keystore_certificate_chain"] = chain
    with segstore.serve(store, **settings) as server:
        assert gauge(server) == {(name,): end.timestamp() for name, end in ends.items()}


def test_a_server_without_tls_has_none(store: segstore.Store) -> None:
    with serving(store) as server:
        assert gauge(server) == {}


@pytest.mark.parametrize("days", [-1, 29, 31])
def test_little_time_is_told_at_the_start_and_at_a_reload(
    store: segstore.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int
) -> None:
    path, end = tmp_path / "server.pem", NOW + timedelta(days=days, hours=1)
    expected = {
        -1: [(logging.ERROR, "the certificate of the listener SSL has ended")],
        29: [(logging.WARNING, "the certificate of the listener SSL ends in 29.0 days")],
        31: [],
    }[days]
    leaf(NOW + timedelta(days=31, hours=1)).private_key_and_cert_chain_pem.write_to_path(path)
    config = {"security_protocol": "SSL", "ssl_keystore_location": str(path)}
    with segstore.serve(store, port=0, **config) as server:
        assert told(caplog) == []
        leaf(end).private_key_and_cert_chain_pem.write_to_path(path)
        server.reload()
        assert gauge(server) == {("SSL",): end.timestamp()}
        assert told(caplog) == expected
    caplog.clear()
    with segstore.serve(store, port=0, **config):
        pass
    assert told(caplog) == expected


def test_it_is_told_each_day_from_when_little_is_left(caplog: pytest.LogCaptureFixture) -> None:
    loop = FakeLoop()
    CertificateWatch(loop, "SSL", lambda: 32 * DAY, lambda: loop.now).begin()
    counts = []
    for _ in range(34):
        counts.append(len(told(caplog)))
        loop.pass_time(DAY)
    assert counts == [0, 0, 0, *range(1, 32)]
    assert told(caplog)[0] == (logging.WARNING, "the certificate of the listener SSL ends in 29.0 days")
    assert told(caplog)[-1] == (logging.ERROR, "the certificate of the listener SSL has ended")
