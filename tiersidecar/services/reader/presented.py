"""Read the credentials of callers (Basic, Bearer, a client certificate), and find their configured Kafka credentials."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from aiohttp import web
from cryptography import x509

from tiersidecar.ports.broker import Credentials
from tiersidecar.services.reader.problems import unauthenticated

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
"""RFC 6750, section 2.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCaller:
    """The owner of a token, or of a client certificate with this subject (RFC 4514), with its Kafka username and password: the
    broker is asked as that principal."""

    credentials: Credentials
    token: str | None = field(default=None, repr=False)
    subject: str | None = None


class KnownCallers:
    """The operator's list.  It grants nothing: the broker decides about the principal that an entry names.

    Raises:
        ValueError: a subject that is no distinguished name.
    """

    def __init__(self, callers: Iterable[KnownCaller] = ()) -> None:
        callers = tuple(callers)
        # By digest, so that the time of a look-up does not show how much of a token was right.
        self._by_token = {_digest(caller.token): caller.credentials for caller in callers if caller.token is not None}
        self._by_subject = {
            _name(x509.Name.from_rfc4514_string(caller.subject)): caller.credentials
            for caller in callers
            if caller.subject is not None
        }

    def credentials_of(self, presented: Credentials) -> Credentials:
        """Return the credentials of a listed token's owner; else the presented ones, for the broker to judge."""
        if presented.token is None:
            return presented
        return self._by_token.get(_digest(presented.token), presented)

    def owner_of(self, certificate: bytes) -> Credentials | None:
        """Return the credentials of the owner of a certificate (DER) whose chain the TLS handshake has verified; None if it is
        not listed."""
        if not self._by_subject:
            return None
        return self._by_subject.get(_name(x509.load_der_x509_certificate(certificate).subject))


def client_certificate(request: web.Request) -> bytes | None:
    """Return the client's certificate (DER), if the connection has one: the TLS context accepted only one it could verify."""
    tls = None if request.transport is None else request.transport.get_extra_info("ssl_object")
    certificate: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
    return certificate


def read_authorization(header: str) -> Credentials:
    """Return the credentials of an ``Authorization`` header, ``Basic`` (RFC 7617, UTF-8) or ``Bearer`` (RFC 6750).

    Raises:
        ProblemError: 401 for another scheme, or a malformed header.
    """
    scheme, _, rest = header.partition(" ")
    match scheme.lower():
        case "basic":
            return _read_basic(rest.strip())
        case "bearer" if _TOKEN.fullmatch(rest.strip()):
            return Credentials(token=rest.strip())
        case _:
            raise unauthenticated()


def _read_basic(encoded: str) -> Credentials:
    try:
        username, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError as error:  # also for letters outside ASCII
        raise unauthenticated() from error
    if not colon or not username or "\0" in username + password:
        # SASL/PLAIN separates its fields by NUL.
        raise unauthenticated()
    return Credentials(username=username, password=password)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _name(name: x509.Name) -> str:
    """Return one spelling of equal names, whatever string types the authority has used."""
    return name.rfc4514_string()
