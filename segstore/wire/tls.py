"""Makes the TLS context of a client from the client's settings. On disk: reads the files that the settings
name. Threads: any; the functions have no state.
"""

from __future__ import annotations

import ssl

from segstore.errors import ConfigError
from segstore.wire.settings import WireConfig


def client_context(config: WireConfig) -> ssl.SSLContext:
    """Return the TLS context for connections to brokers. Raises ConfigError, whose text names the setting."""
    context = ssl.create_default_context()
    if config.ssl_endpoint_identification_algorithm == "none":
        context.check_hostname = False
    if config.trusted is not None:
        context = _trusting(context, config.trusted)
    if config.ssl_certificate_location is not None:
        _show(context, config)
    return context


def _trusting(context: ssl.SSLContext, path: str) -> ssl.SSLContext:
    """Return a TLS context that trusts only the certificates in a file."""
    only = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    only.check_hostname = context.check_hostname
    try:
        only.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"ssl.ca.location={path!r}: no certificates in PEM: {_why(error)}") from None
    return only


def _show(context: ssl.SSLContext, config: WireConfig) -> None:
    path = config.ssl_certificate_location
    assert path is not None
    try:
        # A password is always passed, because without one OpenSSL would ask for a password at the terminal.
        context.load_cert_chain(path, config.ssl_key_location, config.ssl_key_password or "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"ssl.certificate.location={path!r}: no certificate with its private key in PEM: {_why(error)}"
        ) from None


def _why(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
