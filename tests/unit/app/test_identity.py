"""Who we are is waited for: a sidecar may start before its broker has ever run."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.app.identity import Identity, confirm_cluster, identity_of, longer_name, own_host_name, patiently
from tiersidecar.domain.errors import BrokerUnreachableError, LogDirError, WrongClusterError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.ports.broker import ClusterDescription

META_PROPERTIES = "version=1\ncluster.id=dGllcnNpZGVjYXItdGVzdA\nnode.id=3\ndirectory.id=ldlWAnQgGypqhN_XSdNg2g\n"


async def test_a_log_dir_that_no_broker_has_formatted_yet_is_waited_for(tmp_path: Path) -> None:
    clock = ManualClock()
    log_dirs = FilesystemLogDirs([str(tmp_path)], blocking=InlineBlocking(), clock=clock)
    asked = asyncio.create_task(patiently(log_dirs.identities, clock))
    await clock.advance(60)
    assert not asked.done()
    (tmp_path / "meta.properties").write_text(META_PROPERTIES)
    await clock.advance(10)
    assert identity_of(await asked).broker_id == 3


async def test_a_log_dir_that_is_not_there_is_a_mistake_that_waiting_does_not_mend(tmp_path: Path) -> None:
    clock = ManualClock()
    log_dirs = FilesystemLogDirs([str(tmp_path / "dta")], blocking=InlineBlocking(), clock=clock)
    with pytest.raises(LogDirError, match="dta"):
        await patiently(log_dirs.identities, clock)


async def test_a_broker_that_is_away_is_asked_again_at_least_every_ten_seconds() -> None:
    clock, asked = ManualClock(), list[float]()

    async def ask() -> str:
        asked.append(clock.monotonic_s())
        if len(asked) < 9:
            raise BrokerUnreachableError(address="kafka:9092", reason="connection refused")
        return "here"

    answer = asyncio.create_task(patiently(ask, clock))
    await clock.advance(120)
    assert await answer == "here"
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


class ThreeBrokers:
    """Known by names, at one address each; 3 is down."""

    async def describe_cluster(self) -> ClusterDescription:
        names = {1: "one.example:9092", 2: "two.example:9092"}
        return ClusterDescription(cluster_id="cluster", brokers={BrokerId(node): name for node, name in names.items()})


HOSTS = {
    "one.example": {"10.0.0.1"},
    "alias-of-one.example": {"10.0.0.1"},
    "two.example": {"10.0.0.2"},
    "three.example": {"10.0.0.3"},
    "all.example": {"10.0.0.1", "10.0.0.2"},
    "localhost": {"127.0.0.1", "::1"},
}


async def resolve(host: str) -> frozenset[str]:
    return frozenset(HOSTS.get(host, {host}))


@pytest.mark.parametrize(
    ("node", "bootstrap", "is_wrong"),
    [
        pytest.param(1, ["one.example:9092"], False, id="our own broker, by its name"),
        pytest.param(1, ["alias-of-one.example:9092"], False, id="our own broker, by another name"),
        pytest.param(1, ["10.0.0.1:9092"], False, id="our own broker, by its address"),
        pytest.param(1, ["localhost:9092"], False, id="a name that the cluster does not know: nothing is proven"),
        pytest.param(1, ["one.example:9093"], False, id="another listener: nothing is proven"),
        pytest.param(1, ["two.example:9092", "one.example:9092"], False, id="our own among others"),
        pytest.param(1, ["all.example:9092"], False, id="a name that leads to several, ours among them"),
        pytest.param(3, ["all.example:9092", "three.example:9092"], False, id="ours is down, and named"),
        pytest.param(1, ["two.example:9092"], True, id="another broker"),
        pytest.param(2, ["alias-of-one.example:9092"], True, id="another broker, by another name"),
        pytest.param(3, ["one.example:9092", "two.example:9092"], True, id="all are others"),
    ],
)
async def test_bootstrap_servers_that_lead_to_other_brokers_only(
    node: int, bootstrap: list[str], is_wrong: bool
) -> None:
    identity = Identity(cluster_id="cluster", broker_id=BrokerId(node))
    asked = confirm_cluster(ThreeBrokers(), identity, ManualClock(), bootstrap=bootstrap, resolve=resolve)
    if is_wrong:
        with pytest.raises(WrongClusterError, match=f"another broker than log.dirs: .* of node {node}"):
            await asked
    else:
        await asked


@pytest.mark.parametrize(
    ("name", "canonical", "told"),
    [
        pytest.param("kafka-0", "kafka-0.kafka.ns.svc.cluster.local", "kafka-0.kafka.ns.svc.cluster.local", id="a pod"),
        pytest.param("kafka-0", "localhost", "kafka-0", id="in /etc/hosts as localhost"),
        pytest.param("kafka-0", "", "kafka-0", id="not resolved"),
        pytest.param("kafka-0.example", "kafka-0", "kafka-0.example", id="no shorter one"),
    ],
)
def test_the_name_that_others_resolve(name: str, canonical: str, told: str) -> None:
    assert longer_name(name, canonical) == told


async def test_every_machine_has_a_name() -> None:
    assert await own_host_name()
