"""Finds the time at which a server's certificate expires. The standard library can't do this for the server's
own certificate, but only for certificates of authorities and of peers. So this module parses the
certificate's DER encoding up to the field notAfter (X.509: RFC 5280, 4.1).

On disk: reads the file that the settings name. Threads: any; no state.
"""

from __future__ import annotations

import re
import ssl
from calendar import timegm
from datetime import datetime

from segstore.files.given_files import read_given

from .settings import SecurityConfig

_MOST_BYTES = 1 << 24
_FIRST = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _LONG, _UTC_TIME = 0xA0, 0x80, 0x17


def certificate_end(config: SecurityConfig) -> float | None:
    """Return the time at which a listener's certificate expires, in seconds since the epoch; None if the
    listener has no certificate. Raises OSError, and the errors of `not_after`.
    """
    text = config.ssl_keystore_certificate_chain
    if config.ssl_keystore_location is not None:
        text = read_given(config.ssl_keystore_location, _MOST_BYTES).decode("ascii", "replace")
    found = _FIRST.search(text or "")
    return None if found is None else not_after(ssl.PEM_cert_to_DER_cert(found[0]))


def not_after(der: bytes) -> float:
    """Return the time at which a certificate expires, in seconds since the epoch. `der` is the certificate in
    DER encoding. Raises ValueError or IndexError if the bytes are malformed.
    """
    at = _content(der, _content(der, 0))
    if der[at] == _VERSION:
        at = _after(der, at)
    # The loop skips the serial number, the algorithm and the issuer.
    for _ in range(3):
        at = _after(der, at)
    # This skips notBefore.
    at = _after(der, _content(der, at))
    text = der[_content(der, at) : _after(der, at)].decode("ascii")
    form = "%y%m%d%H%M%SZ" if der[at] == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return float(timegm(datetime.strptime(text, form).timetuple()))


def _content(der: bytes, at: int) -> int:
    """Return the position at which the content of the DER element at position `at` begins."""
    return at + 2 + (der[at + 1] - _LONG if der[at + 1] > _LONG else 0)


def _after(der: bytes, at: int) -> int:
    """Return the position after the DER element that begins at position `at`."""
    content = _content(der, at)
    return content + (int.from_bytes(der[at + 2 : content], "big") if der[at + 1] > _LONG else der[at + 1])
