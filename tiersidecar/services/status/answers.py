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
_MOST_ID = 64


def is_host_and_port(address: str) -> bool:
    """Return whether ``address`` is no more than a host and a port: as part of a URL it can name no path and no user."""
    return _HOST_AND_PORT.fullmatch(address) is not None


def cluster_of(document: Mapping[str, Any]) -> str:
    """Return the cluster that an answer is about; empty where it does not say, as while the sidecar starts."""
    cluster_id = document.get("cluster_id")
    return cluster_id if isinstance(cluster_id, str) else ""


def reason_of_another_cluster(address: str, document: Mapping[str, Any], ours: str) -> str:
    """Return why ``document``, which ``address`` answered, does not count in cluster ``ours``; empty if it does, or one of the
    two is not known."""
    cluster_id = cluster_of(document)
    if not ours or not cluster_id or cluster_id == ours:
        return ""
    return f"{address} answers for cluster {cluster_id[:_MOST_ID]}, and this is cluster {ours}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``document`` is None where ``problem`` says why there is none; ``code`` is HTTP's, 0 without an answer."""

    document: Mapping[str, Any] | None = None
    code: int = 0
    problem: str = ""
