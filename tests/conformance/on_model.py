"""A script on the brokers of the simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import assert_never

from tests.conformance.observation import Observation, Stage, observe
from tests.conformance.script import (
    END,
    Configure,
    DeleteRecords,
    End,
    Kill,
    Lead,
    LeadUncleanly,
    LoseCheckpoints,
    LoseReplica,
    MoveLogDir,
    Produce,
    Script,
    Start,
    Step,
    Stop,
)
from tests.simulation.broker_offsets import diverges
from tests.simulation.broker_side import BrokerSide
from tests.simulation.chances import Chances
from tests.simulation.cluster import Cluster
from tests.simulation.records import Marker
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.formats.wire.cursor import ApiKey

PRODUCERS = {"a": 101, "b": 102, "c": 103}
TOPIC = "orders"


def run_on_model(script: Script, version: str, directory: Path, began_ms: int) -> list[Observation]:
    """What is seen before the first step and after each, of brokers that stand for Kafka ``version``."""
    stage = ModelStage(script, version, directory, began_ms)
    history = [observe(stage, "")]
    for step in script.steps:
        outcome = stage.act(step)
        stage.settle()
        history.append(observe(stage, outcome))
    return history


class ModelStage(Stage):
    """``began_ms`` is the time at which the script runs."""

    def __init__(self, script: Script, version: str, directory: Path, began_ms: int) -> None:
        self._began_ms, self._stamps, self._markers = began_ms, 0, 0
        self._settings: dict[str, str] = dict(script.settings)
        self._replicas = script.replicas
        chances = Chances(0)
        chances.quiet = True
        self.cluster = Cluster(
            directory,
            broker_ids=script.replicas,
            topic=TOPIC,
            topic_id=Uuid(b"simulated-topic!"),
            partitions=1,
            segment_bytes=lambda broker: script.segment_bytes,
            stamp_ns=self._stamp_ns,
            later=self._later,
            changed=lambda broker: None,
            elects_after_crash=not version.startswith("3."),
        )
        ((self._topic_id_partition, self._partition),) = self.cluster.partitions.items()
        self._sides = {broker: BrokerSide(self.cluster, broker, chances) for broker in script.replicas}
        self.settle()

    @property
    def partition(self) -> TopicIdPartition:
        return self._topic_id_partition

    def act(self, step: Step) -> str:
        match step:
            case Produce():
                return self._produce(step)
            case End(producer, commit):
                marker = Marker.COMMIT if commit else Marker.ABORT
                self._partition.end_transaction(PRODUCERS[producer], marker, self._marker_ms())
            case DeleteRecords(offset):
                return self._delete_records(offset)
            case Stop(broker):
                self.cluster.stop_broker(broker, was_clean=True)
            case Kill(broker):
                self.cluster.stop_broker(broker, was_clean=False)
            case Start(broker):
                self.cluster.start_broker(broker)
            case LoseCheckpoints(broker):
                self.cluster.lose_checkpoints(broker)
            case LoseReplica(broker):
                self.cluster.lose_replica(self._partition, broker)
            case MoveLogDir(broker):
                self.cluster.move_log_dir(self._partition, broker)
            case Lead(broker) | LeadUncleanly(broker):
                self.cluster.elect(self._partition, broker)
            case Configure(settings):
                changed = {**self._settings, **settings}
                self._settings = {key: value for key, value in changed.items() if value is not None}
            case _:
                assert_never(step)
        return "none"

    def settle(self) -> None:
        """All that happens by itself has happened."""
        for _ in range(3):
            self.cluster.catch_up()
            self.cluster.clean_up(
                int(self._settings.get("retention.ms", "-1")),
                self._began_ms,
                retention_bytes=int(self._settings.get("retention.bytes", "-1")),
            )
        self.cluster.write_high_watermarks()

    # -- what is seen

    def leadership(self) -> tuple[int | None, int, tuple[int, ...]]:
        if not self.cluster.alive:
            return None, -1, ()  # nobody can be asked
        return self._partition.leader, self._partition.epoch, tuple(sorted(self._partition.in_sync))

    def alive(self) -> tuple[int, ...]:
        return tuple(sorted(self.cluster.alive))

    def replicas(self) -> tuple[int, ...]:
        return self._replicas

    def ask(self, broker: int, api_key: ApiKey, version: int, body: bytes) -> bytes:
        return self._sides[broker].answer(api_key, version, body)

    def parts(self, broker: int, offset: int, last_fetched_epoch: int) -> str:
        log = self._partition.logs[broker]
        if diverges(log, last_fetched_epoch, offset):
            return "parts"
        return "goes on" if log.log_start_offset <= offset <= log.log_end_offset else "offset_out_of_range"

    def directory(self, broker: int) -> Path | None:
        directory = self._partition.logs[broker].directory
        return directory if directory.is_dir() else None

    # -- what is done

    def _produce(self, step: Produce) -> str:
        if self._partition.leader is None:
            return "leader_not_available"
        for _ in range(step.batches):
            self._partition.produce(records_of(step, self._began_ms), PRODUCERS[step.producer] if step.producer else -1)
            self.cluster.catch_up()  # acks=all: each comes to the followers by itself
        return "none"

    def _delete_records(self, offset: int) -> str:
        log = self._partition.leader_log
        wanted = log.high_watermark if offset == END else offset
        if wanted > log.high_watermark:
            return "offset_out_of_range"
        log.raise_log_start(wanted)
        return "none"

    def _marker_ms(self) -> int:
        self._markers += 1
        return self._began_ms + self._markers

    def _stamp_ns(self) -> int:
        self._stamps += 1
        return self._began_ms * 1_000_000 + self._stamps

    def _later(self, after_s: float, what: Callable[[], None]) -> None:
        what()


def records_of(step: Produce, began_ms: int) -> list[tuple[int, bytes]]:
    """Timestamps and values of one batch."""
    first_ms = began_ms - int(step.age_s * 1000)
    return [(first_ms + number * step.step_ms, b"v" * step.size) for number in range(step.records)]
