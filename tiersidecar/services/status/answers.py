"""Addresses that may be asked for a status, and their answers.  Standard library alone: commands start with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[\w.-]+):\d{1,5}", re.ASCII)
REFUSED = "it refused to answer: is status.cluster.secret the same there, and are both clocks right?"
UNPROVEN = (
    "its answer does not prove that it is of this cluster: is status.cluster.secret the same there, and status.advertised "
    "its own?"
)


def is_host_and_port(address: str) -> bool:
    """Return whether ``address`` is no more than a host and a port: as part of a URL it can name no path and no user."""
    return _HOST_AND_PORT.fullmatch(address) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``document`` is None where ``problem`` says why there is none; ``code`` is HTTP's, 0 without an answer."""

    document: Mapping[str, Any] | None = None
    code: int = 0
    problem: str = ""
