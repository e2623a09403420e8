"""What waits until every broker's sidecar is of this format (rolling upgrades)."""

from __future__ import annotations

import pytest

from tiersidecar.domain.lease import Lease, reason_to_wait_for_sidecars


def lease(node: int, *, lease_format: int = 2) -> Lease:
    return Lease(
        name=str(node),
        cluster_id="c",
        broker_id=node,
        incarnation="one",
        term=1,
        host="h",
        pid=1,
        version="1",
        renewed_ms=0,
        duration_ms=1,
        format=lease_format,
    )


@pytest.mark.parametrize(
    ("leases", "without", "silent"),
    [
        pytest.param([lease(1), lease(2), lease(3)], [], [], id="each has shown itself"),
        pytest.param([lease(1), lease(3)], [], ["2"], id="one has not: it is of a former release, or is not there"),
        pytest.param([lease(1), lease(3)], [2], [], id="it has none on purpose"),
        pytest.param([lease(1), lease(2, lease_format=1), lease(3)], [], ["2"], id="one shows another format"),
        pytest.param([], [], ["1, 2, 3"], id="none has"),
    ],
)
def test_which_brokers_are_waited_for(leases: list[Lease], without: list[int], silent: list[str]) -> None:
    found = {one.name: one for one in leases}
    reason = reason_to_wait_for_sidecars([3, 1, 2], found.get, without)
    assert bool(reason) is bool(silent)
    assert all(f"brokers {one} have no sidecar of this version" in reason for one in silent)
