"""HTTP from a command to the very address that it was given."""

from __future__ import annotations

import ssl
import urllib.request
from typing import Any


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: followed, it would take credentials, and the request itself, anywhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


def direct_opener(tls: ssl.SSLContext | None = None) -> urllib.request.OpenerDirector:
    """Return an opener that neither uses the proxy that the environment names nor follows redirects."""
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), _NoRedirects, urllib.request.HTTPSHandler(context=tls)
    )
