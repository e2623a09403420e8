"""What may go wrong between the daemon and Azure Blob Storage, drawn from a seed: a bad network, and the service's answers."""

from __future__ import annotations

import random

from tests.support.s3_fault_proxy import Fault, FaultKind
from tests.support.s3_troubles import (
    FOR_EVER,
    HONEST_FAULTS,
    DrawTrouble,
    Trouble,
    bad_network,
    refused_connections,
    stopped_server,
)
from tests.support.toxiproxy import Toxic

_PUT_BLOCK, _PUT_BLOCK_LIST, _LIST = "comp=block&", "comp=blocklist", "comp=list"
_PUTS = ("", _PUT_BLOCK, _PUT_BLOCK_LIST)
_REQUESTS = (*[("PUT", query) for query in _PUTS], ("GET", ""), ("GET", _LIST), ("HEAD", ""), ("DELETE", ""))
_REFUSALS = ((500, "InternalError"), (500, "OperationTimedOut"), (503, "ServerBusy"))


def _far_away(draw: random.Random) -> Trouble:
    """50 ms there and back, give or take 20."""
    toxic = Toxic(kind="latency", attributes=(("latency", 50), ("jitter", 20)))
    return Trouble(name="50 ms away", requests=draw.randint(20, 60), at_most_s=draw.uniform(1.0, 3.0), toxics=(toxic,))


def _fault(draw: random.Random) -> Trouble:
    kind = draw.choice(HONEST_FAULTS)
    method, query = ("GET", "") if kind is FaultKind.CUT else draw.choice(_REQUESTS)
    status, code = draw.choice(_REFUSALS)
    times = draw.choice([1, 2, 5, FOR_EVER])

    def faults() -> list[Fault]:
        return [Fault(kind=kind, method=method, query=query, times=times, status=status, code=code)]

    said = f" {status} {code}" if kind is FaultKind.REFUSE else ""
    name = f"{kind}{said} of {times} {method} {query}".rstrip()
    return Trouble(name=name, requests=draw.randint(3, 40), at_most_s=draw.uniform(0.5, 2.0), faults=faults)


def _storm(draw: random.Random) -> Trouble:
    """The account is over its limit of requests: whatever is asked."""

    def faults() -> list[Fault]:
        of_all = ("PUT", "GET", "HEAD", "DELETE")
        return [Fault(kind=FaultKind.REFUSE, method=method, times=FOR_EVER, code="ServerBusy") for method in of_all]

    return Trouble(name="ServerBusy storm", requests=FOR_EVER, at_most_s=draw.uniform(0.5, 3.0), faults=faults)


def _nothing(draw: random.Random) -> Trouble:
    """A success that nothing stands behind.  Not of DELETE: no later request of the daemon's would show that it was a lie."""
    method, query = draw.choice([*[("PUT", query) for query in _PUTS], ("GET", ""), ("HEAD", "")])
    status, times = (201 if method == "PUT" else 200), draw.choice([1, 2, 5, FOR_EVER])

    def faults() -> list[Fault]:
        return [Fault(kind=FaultKind.REFUSE, method=method, query=query, times=times, status=status)]

    name = f"{status} and nothing of {times} {method} {query}".rstrip()
    return Trouble(name=name, requests=draw.randint(3, 40), at_most_s=draw.uniform(0.5, 2.0), faults=faults)


def _stale_lists(draw: random.Random) -> Trouble:
    """Some refusals before them, so that the daemon holds the service for gone, and probes it by all that it asks of one."""
    times = draw.randint(2, 6)

    def faults() -> list[Fault]:
        stale = Fault(kind=FaultKind.STALE, method="GET", query=_LIST, times=FOR_EVER)
        return [Fault(kind=FaultKind.REFUSE, method="PUT", times=times, code="ServerBusy"), stale]

    name = f"stale lists after {times} refusals"
    return Trouble(name=name, requests=FOR_EVER, at_most_s=draw.uniform(1.0, 3.0), faults=faults)


AZURE_TROUBLES: tuple[DrawTrouble, ...] = (
    _far_away,
    *[bad_network] * 3,
    *[_fault] * 3,
    _storm,
    *[_nothing] * 2,
    _stale_lists,
    stopped_server,
    refused_connections,
)
