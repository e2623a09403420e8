"""Check of a server's certificate by our own connections."""

from __future__ import annotations

import ssl


def tls_context(*, ca_pem: str | None, verify: bool) -> ssl.SSLContext | bool:
    """Return the value for aiohttp: true checks against the system's authorities, false checks nothing.  Reads files."""
    if not verify:
        return False
    return True if ca_pem is None else ssl.create_default_context(cadata=ca_pem)
