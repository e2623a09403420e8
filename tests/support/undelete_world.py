"""A partition in memory, its leader's sidecar, and an operator beside it: what users, retention and ``undelete`` do to it.

Everything is a coroutine that a test steps (``tests.support.expiry_world``); where a command waits for the leader's answer, the
sidecar makes a round.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from tests.support.expiry import HOUR_MS, SEGMENT_BYTES, segment
from tests.support.expiry_world import PausingBroker, Sidecar, StoppedClock, World, run
from tests.support.segments import TOPIC_ID_PARTITION
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.commands.carry_out import Intent
from tiersidecar.app.commands.session import Session
from tiersidecar.app.commands.undelete import Wanted, end_holds, look_at_undeletion
from tiersidecar.app.config.config import Config
from tiersidecar.decide.expiry_view import ExpiryLimits
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import UNLIMITED, TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import ClusterDescription
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.reading.user_deletes import Asker, UserDelete

LENGTH = 10
LINEAGE = Lineage.of([(0, 0)])
DELAYS = TrashDelays(retention_ms=24 * HOUR_MS, user_ms=HOUR_MS)


def command_config(directory: Path, *, mode: str = "strict") -> Config:
    """Return the configuration of an operator's machine."""
    return load(directory, f"{LEAST}topics:\n- name: {TOPIC_ID_PARTITION.topic}\n  mode: {mode}\n")


class AnsweringClock(StoppedClock):
    """While a command sleeps, ``rounds`` of sidecars pass; with none nothing answers."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[Sidecar] = []

    async def sleep(self, seconds: float) -> None:
        self.true_ms += int(seconds * 1000)
        for sidecar in self.rounds:
            run(sidecar.round())


class Broker(PausingBroker):
    async def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription(cluster_id="c", brokers={})


class OperatorSession(Session):
    """A session with a metadata log that is read to its end."""

    async def follow(self, partitions: Sequence[TopicIdPartition]) -> MetadataLog:
        assert self.metadata is not None
        return self.metadata


class UndeleteWorld:
    """``count`` remote segments of ``LENGTH`` offsets; the broker has what comes after them."""

    def __init__(self, config: Config, count: int = 8) -> None:
        self.world, self.clock = World(), AnsweringClock()
        for number in range(count):
            self.world.add(
                segment(
                    number * LENGTH,
                    number * LENGTH + LENGTH - 1,
                    age_h=count - number,
                    uuid=(number + 1).to_bytes(16, "big"),
                )
            )
        self.stop = count * LENGTH
        self.restart(UNLIMITED)
        self.clock.rounds = [self.sidecar]
        broker = Broker()
        broker.log_starts[TOPIC_ID_PARTITION] = self.stop
        view = LeaderView(
            topic_id_partition=TOPIC_ID_PARTITION,
            leader_id=BrokerId(1),
            leader_epoch=LeaderEpoch(0),
            replicas=(BrokerId(1),),
            in_sync_replicas=(BrokerId(1),),
        )
        broker.views = (view,)
        self.session = OperatorSession(
            config=config,
            broker=broker,  # type: ignore[arg-type]
            state=self.world.state,
            metadata=self.world.metadata,
            clock=self.clock,
        )

    def restart(self, segments_kept: int) -> None:
        """Become another process of the sidecar, by whose retention so many segments stay."""
        size_bytes = UNLIMITED if segments_kept == UNLIMITED else segments_kept * SEGMENT_BYTES
        self.sidecar = Sidecar(
            self.world,
            policy=TopicPolicy(retention_bytes=size_bytes),
            lineage=LINEAGE,
            clock=self.clock,
            delays=DELAYS,
            limits=ExpiryLimits(max_share=1.0, idle_slack_ms=10**12),
        )
        self.sidecar.broker.log_starts[TOPIC_ID_PARTITION] = self.stop
        self.sidecar.broker.last_stable_offsets[TOPIC_ID_PARTITION] = self.stop
        self.clock.rounds = [self.sidecar]

    @property
    def start(self) -> int:
        return self.world.state.partition_state(TOPIC_ID_PARTITION).start_in(LINEAGE)

    def delete(self, offset: int) -> None:
        """Publish a user's delete, said in full."""
        run(self.delete_steps(offset))

    def delete_steps(self, offset: int) -> Coroutine[Any, Any, None]:
        return self._delete(offset)

    async def _delete(self, offset: int) -> None:
        asker = Asker(by="a user", now_ms=self.clock.now_ms(), delays=DELAYS)
        delete = UserDelete(offset=Offset(offset), leader_epoch=LeaderEpoch(0), trims=False)
        await delete.say(self.world.state, TOPIC_ID_PARTITION, asker)

    def look(self, **wanted: Any) -> Intent:
        """Return what ``tiersidecar undelete`` shows."""
        found: list[Intent] = []

        async def look() -> None:
            partition = TOPIC_ID_PARTITION.partition if "to_offset" in wanted else None
            found.append(
                await look_at_undeletion(
                    self.session, Wanted(topic=TOPIC_ID_PARTITION.topic, partition=partition, **wanted)
                )
            )

        run(look())
        return found[0]

    def undelete(self, **wanted: Any) -> dict[str, Any]:
        """Return what came of it; empty where there was nothing to do."""
        intent, outcome = self.look(**wanted), dict[str, Any]()
        if intent.refusal or not intent.steps:
            return {}

        async def apply() -> None:
            assert intent.apply is not None
            outcome.update(await intent.apply() or {})

        run(apply())
        return outcome

    def release(self) -> None:
        run(end_holds(self.session, [TOPIC_ID_PARTITION]))

    def pass_time(self, ms: int) -> None:
        """Let time pass for the trash: the records' age is no matter here."""
        self.clock.true_ms += ms

    def readable(self) -> list[int]:
        """Return begins of remote segments of which something can be read."""
        return [one.start_offset for one in self.world.readable() if one.end_offset >= self.start]
