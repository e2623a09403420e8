"""Build TLS contexts towards brokers; certificates that are renewed on disk are read again."""

from __future__ import annotations

import os
import ssl
from typing import Any

import structlog

from tiersidecar.adapters.kafka.security import SecuritySettings
from tiersidecar.domain.errors import ConfigError

_log = structlog.get_logger(__name__)


def ssl_context(settings: SecuritySettings) -> ssl.SSLContext | None:
    """Return the client's context, or None when the protocol has no TLS.

    The broker's certificate is always verified; its host name unless ``ssl_check_hostname`` is off.  The client's
    certificate is loaded again before a handshake when its files have changed, so that renewals need no restart, in
    clients of other libraries too.

    Raises:
        ConfigError: a file is missing, not PEM, or the key is not the certificate's.
    """
    if not settings.security_protocol.has_tls:
        return None
    context = _RenewingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.ssl_check_hostname
    _load_authorities(context, settings.ssl_ca_file)
    if settings.ssl_certificate_file is not None:
        context.follow(settings)
    return context


def _load_authorities(context: ssl.SSLContext, ca_file: str | None) -> None:
    if ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    try:
        context.load_verify_locations(cafile=ca_file)
    except OSError as error:
        raise ConfigError(source=ca_file, faults=(f"not a usable PEM trust store: {error}",)) from error


class _RenewingContext(ssl.SSLContext):
    """Checks its certificate files before each handshake (both asyncio and uvloop call ``wrap_bio``)."""

    _settings: SecuritySettings | None = None
    _seen: tuple[tuple[int, int], ...] = ()

    def follow(self, settings: SecuritySettings) -> None:
        try:
            self._seen = _stamps(settings)
            _load_certificate(self, settings)
        except OSError as error:
            source = settings.ssl_certificate_file or ""
            raise ConfigError(source=source, faults=(f"not a usable PEM certificate and key: {error}",)) from error
        self._settings = settings

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        if self._settings is not None:
            self._renew(self._settings)
        return super().wrap_bio(*args, **kwargs)

    def _renew(self, settings: SecuritySettings) -> None:
        try:
            stamps = _stamps(settings)
            if stamps == self._seen:
                return
            # Certificate and key may be replaced one after the other: a pair that does not fit must not get in, as
            # OpenSSL drops the old key when the new certificate is not its own.
            _load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), settings)
            _load_certificate(self, settings)
        except OSError as error:
            _log.warning("broker.certificate.not_renewed", path=settings.ssl_certificate_file, reason=str(error))
            return
        self._seen = stamps
        _log.info("broker.certificate.renewed", path=settings.ssl_certificate_file)


def _load_certificate(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    # A password callback keeps OpenSSL from asking on the terminal when the key turns out to be encrypted.
    context.load_cert_chain(
        settings.ssl_certificate_file or "", settings.ssl_key_file, password=lambda: settings.ssl_key_password or ""
    )


def _stamps(settings: SecuritySettings) -> tuple[tuple[int, int], ...]:
    paths = (path for path in (settings.ssl_certificate_file, settings.ssl_key_file) if path is not None)
    return tuple((found.st_mtime_ns, found.st_size) for found in map(os.stat, paths))
