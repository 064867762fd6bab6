"""The TLS context of a server, made from its settings, and the principal of a client's certificate.

On disk: reads the files that the settings name, once. If the certificate and the key are given as texts, they
are written to an in-memory file, because Python's ssl reads them only from files. Threads: any; no state.
"""

from __future__ import annotations

import ssl
from contextlib import ExitStack
from typing import Any

from segstore.errors import ConfigError
from segstore.files.given_files import check_regular, memory_file

from .settings import SecurityConfig

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}


def tls_context(config: SecurityConfig) -> ssl.SSLContext:
    """Make the TLS context of a server. Raises ConfigError, whose message has the setting's name and no part
    of the key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = sorted(_VERSIONS[each] for each in config.ssl_enabled_protocols.split(","))
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _load_key(context, config)
    context.verify_mode = _CLIENT_AUTH[config.ssl_client_auth]
    if config.ssl_truststore_location or config.ssl_truststore_certificates:
        _load_trusted(context, config)
    return context


def _load_key(context: ssl.SSLContext, config: SecurityConfig) -> None:
    name, path = "ssl_keystore_location", config.ssl_keystore_location
    with ExitStack() as stack:
        if path is None:
            name = "ssl_keystore_certificate_chain"
            both = f"{config.ssl_keystore_key}\n{config.ssl_keystore_certificate_chain}\n"
            path = stack.enter_context(memory_file(both.encode()))
        try:
            check_regular(path)
            # If no password were passed, OpenSSL would ask for a password at the terminal.
            context.load_cert_chain(path, password=config.ssl_key_password or "")
        except (OSError, ValueError) as error:
            where = f"={path!r}" if name == "ssl_keystore_location" else ""
            raise ConfigError(
                f"{name}{where}: no certificate with its private key in PEM: {_why(error)}"
            ) from None


def _load_trusted(context: ssl.SSLContext, config: SecurityConfig) -> None:
    path, texts = config.ssl_truststore_location, config.ssl_truststore_certificates
    try:
        if path is not None:
            check_regular(path)
        context.load_verify_locations(cafile=path, cadata=texts)
    except (OSError, ValueError) as error:
        name = "ssl_truststore_certificates" if path is None else f"ssl_truststore_location={path!r}"
        raise ConfigError(f"{name}: no certificates in PEM: {_why(error)}") from None


def _why(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)


def subject(certificate: Any) -> str | None:
    """Return the distinguished name of a certificate's subject in Java's form (RFC 2253:
    X500Principal.getName), which has the last part first. Return None if there is no certificate.
    `certificate` is the result of `SSLObject.getpeercert`.
    """
    if not certificate or not certificate.get("subject"):
        return None
    parts = reversed(certificate["subject"])
    return ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part) for part in parts
    )


def _escaped(value: str) -> str:
    text = "".join(f"\\{letter}" if letter in ',+"\\<>;' else letter for letter in value)
    if text.startswith(("#", " ")):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if text.endswith(" ") and len(value) > 1 else text
