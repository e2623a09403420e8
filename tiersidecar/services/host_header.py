"""Refuse requests that a browser makes for another site (DNS rebinding), where no login is needed.

A page of evil.example whose name is made to mean 127.0.0.1 may read what a service on the reader's own machine answers.  Its
requests have ``Host: evil.example:8091``, with the service's own port.  No other requests are refused: a proxy in front is
reached at an address or a port of its own, and passes that on, or else its own name for the service.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from aiohttp import web

HOSTS_FILE = Path("/etc/hosts")
REFUSAL = (
    "the Host of this request is no name of this machine, so a browser may have been led here by another site: "
    "ask by localhost, or put the name into the hosts file of this machine"
)
_MOST_HOSTS_BYTES = 1024 * 1024
_HTTP_PORT = 80


class HostCheck:
    """Knows this machine's names: its own, those of its hosts file at the start, and ``names``.

    Where ``listen_host`` is no loopback address, it refuses only what is answered to this machine alone: other machines have
    names for it which are not known here, and may ask for the rest without a browser.
    """

    def __init__(self, listen_host: str, *, names: Collection[str] = (), hosts_file: Path = HOSTS_FILE) -> None:
        self._is_on = _is_loopback(listen_host)
        self._names = {_plain(name) for name in (socket.gethostname(), "localhost.localdomain", *names)}
        self._names |= _names_in(hosts_file)

    def is_foreign(self, request: web.BaseRequest, *, only_locals_may_ask: bool = False) -> bool:
        """Return whether ``request`` is meant for another site; ``only_locals_may_ask``: it is answered because it comes from
        this machine, where a browser may have been led to send it."""
        host = request.headers.get("Host", "")
        if not (self._is_on or only_locals_may_ask) or not host or request.transport is None:
            return False
        own_address = request.transport.get_extra_info("sockname")  # None once the client is gone
        name, port = _parts(host)
        return own_address is not None and port == own_address[1] and not self._is_own(_plain(name))

    def _is_own(self, name: str) -> bool:
        labels = name.split(".")
        # No site has a name of one label, nor one that ends with a number, which is an address (127.1, say).
        is_no_site = len(labels) == 1 or labels[-1][:1].isdigit() or name.startswith("[")
        return is_no_site or labels[-1] == "localhost" or name in self._names


def _parts(host: str) -> tuple[str, int]:
    name, colon, port = host.rpartition(":")
    if colon and port.isascii() and port.isdecimal() and len(port) < 6:
        return name, int(port)
    return host, _HTTP_PORT


def _plain(name: str) -> str:
    return name.strip().rstrip(".").lower()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _names_in(hosts_file: Path) -> set[str]:
    """Return the names in the hosts file: each line has an address, and its names."""
    try:
        with hosts_file.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_MOST_HOSTS_BYTES).splitlines()
    except OSError:
        return set()
    return {_plain(name) for line in lines for name in line.partition("#")[0].split()[1:]}
