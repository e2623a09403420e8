"""The tier role's tasks over real log dirs, the memory store and a scripted broker: everything but processes and sockets."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from tests.support.delete_switch import DeleteSwitch
from tests.support.golden import CLEAN_LOG_DIR
from tests.support.held_journal import HeldJournal
from tests.support.lane_parts import actor_of, edges_of, sources_of
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.scripted import MemoryStateLog, ScriptedBroker, ScriptedFailpoints
from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.adapters.pins_fs.pins import FilesystemPins
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.decide.backfill import BackfillOrder
from tiersidecar.decide.quota import RateQuota
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.ids import DEFAULT_PLACE, BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.formats.kafka.log_dir_files import read_offset_checkpoint
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.carried_transactions import CarriedTransactions, OpenAtCuts
from tiersidecar.reading.chunk_manager import StoreChunkManager
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.lineage import LineageKeeper
from tiersidecar.reading.remote_objects import ManifestCache, SegmentPresence
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.batch_epochs import BatchEpochs
from tiersidecar.tasks.contained_read_back import ContainedReadBack
from tiersidecar.tasks.copy import CopyTask
from tiersidecar.tasks.copy_admission import Backfill, CopyAdmission, CopyLagReport, CopyQuota, CopySlots
from tiersidecar.tasks.lanes import Backoff
from tiersidecar.tasks.ownership import UNQUESTIONED, InFlight
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.read_back import ReadBack
from tiersidecar.tasks.recopy import FetchedSegments, RecopyTask
from tiersidecar.tasks.removal import SegmentRemover
from tiersidecar.tasks.segment_objects import LayoutSettings, SegmentObjects
from tiersidecar.tasks.segment_upload import CopyTarget, SegmentUploader, UploadSettings
from tiersidecar.tasks.store_gates import StoreGates
from tiersidecar.tasks.tail_cuts import CuttingUploader, TailCuts
from tiersidecar.tasks.topic_checks import TopicChecks
from tiersidecar.tasks.transaction_waits import TransactionWaits
from tiersidecar.tasks.trim import TrimTask
from tiersidecar.tasks.trim_compacted import CompactedTrims
from tiersidecar.tasks.trim_gate import GroupReads, TrimGate

BROKER = BrokerId(1)
PARTITIONS = ("plain-0", "plain-1")
"""Golden partitions in the log dir of a shell unless a test names others: a copy of all of them takes ten times as long."""


def golden_log_dir(log_dir: Path, partitions: Collection[str]) -> Path:
    """Make ``log_dir``, with copies of the broker's own files and of these of its partitions."""
    log_dir.mkdir(parents=True)
    for path in CLEAN_LOG_DIR.iterdir():
        if path.is_file():
            shutil.copy(path, log_dir)
    for name in partitions:
        shutil.copytree(CLEAN_LOG_DIR / name, log_dir / name)
    return log_dir


def log_starts_in(log_dir: Path) -> dict[tuple[str, int], Offset]:
    """Return the log starts that the broker of ``log_dir`` would answer with, of topics by partition; none without its file."""
    path = log_dir / "log-start-offset-checkpoint"
    return read_offset_checkpoint(path.read_bytes(), where=str(path)) if path.exists() else {}


class TierShell:
    """One sidecar beside broker 1, whose log dir is ``log_dir``, or a new one with copies of golden partitions."""

    def __init__(
        self,
        directory: Path,
        blocking: Blocking,
        settings: LayoutSettings,
        policy: TopicPolicy,
        *,
        clock: Clock | None = None,
        store: Store | None = None,
        log_dir: Path | None = None,
        partitions: Collection[str] = PARTITIONS,
        telemetry: Telemetry | None = None,
        observe_only: bool = False,
    ) -> None:
        self.log_dir = log_dir or golden_log_dir(directory / "logs", partitions)
        self.settings, self.policy, self.blocking = settings, policy, blocking
        self.clock, self.ids, self.telemetry = clock or SystemClock(), SystemIds(), telemetry or NoTelemetry()
        self._checkpointed = log_starts_in(self.log_dir)
        self.table, self.broker, self.state = PartitionTable(), ScriptedBroker(), MemoryStateLog()
        self.failpoints, self.metadata, self.guard = ScriptedFailpoints(), MemoryMetadataLog(), DeleteSwitch()
        self.store: Store = store or MemoryStore(clock=self.clock, ids=self.ids)
        self.log_dirs = FilesystemLogDirs([str(self.log_dir)], blocking=blocking, clock=self.clock)
        self.journal = HeldJournal()
        self.in_flight = InFlight(clock=self.clock, telemetry=self.telemetry, journal=self.journal)
        self.lag = CopyLagReport(table=self.table, metadata=self.metadata, clock=self.clock, telemetry=self.telemetry)
        self.backfill = Backfill(
            lags=self.lag, threshold=5, order=BackfillOrder.OLDEST, clock=self.clock, telemetry=self.telemetry
        )
        self.copy_rate = RateQuota()
        self.quota, self.copy_slots = CopyQuota(quota=self.copy_rate, clock=self.clock), CopySlots(10, reserved=1)
        self.pace = UploadPace(None, self.clock)
        self.manifests = ManifestCache(store=self.store, blocking=blocking, key_ring=settings.key_ring)
        self.blobs = IndexBlobReader(store=self.store, blocking=blocking, manifests=self.manifests)
        self.lineages = LineageKeeper(
            metadata=self.metadata,
            epochs=self.blobs,
            live=self.table,
            blocking=blocking,
            clock=self.clock,
        )
        self.gates = StoreGates({DEFAULT_PLACE: self.store}, lambda topic: DEFAULT_PLACE, clock=self.clock)
        self.gate = self.gates.default
        self.remover = SegmentRemover(
            metadata_log=self.metadata,
            store=self.store,
            key_prefix=settings.key_prefix,
            clock=self.clock,
            failpoints=self.failpoints,
            telemetry=self.telemetry,
            broker_id=BROKER,
            ownership=UNQUESTIONED,
        )
        self.checks = TopicChecks(
            broker=self.broker,
            table=self.table,
            policy_for=lambda topic: self.policy,
            max_name_bytes=self.store.max_name_bytes,
            clock=self.clock,
            telemetry=self.telemetry,
        )
        self.trim_gate = TrimGate(
            table=self.table,
            reads=GroupReads(table=self.table, broker=self.broker, clock=self.clock),
            clock=self.clock,
            telemetry=self.telemetry,
        )
        self.waits = TransactionWaits(
            table=self.table,
            broker=self.broker,
            broker_id=BROKER,
            log_dirs=self.log_dirs,
            clock=self.clock,
            telemetry=self.telemetry,
        )
        self.sources = sources_of(
            table=self.table, broker=self.broker, metadata=self.metadata, state=self.state, lineages=self.lineages
        )
        self.edges = edges_of(
            self.clock, ids=self.ids, blocking=blocking, telemetry=self.telemetry, failpoints=self.failpoints
        )
        self.actor = actor_of(self.guard, broker_id=BROKER, observe_only=observe_only)
        self.target = self._target()
        self.uploader, self.admission = self._uploader(), self._admission()
        self.copy = self._copy()
        self.recopy = self._recopy()
        self.trim = self._trim()

    async def look(self) -> None:
        """Scan, and lead every partition found, in leader epoch 0."""
        self.table.local = await self.log_dirs.scan()
        self.table.assignment = {
            topic_id_partition: self.tiered(topic_id_partition) for topic_id_partition in self.table.local.partitions
        }
        await self.metadata.assign(self.table.assignment)
        await self.checks.refresh({topic_id_partition.topic for topic_id_partition in self.table.assignment})
        for topic_id_partition, local in self.table.local.partitions.items():
            self.broker.last_stable_offsets.setdefault(topic_id_partition, local.segments[-1].base_offset)
            self.broker.log_starts.setdefault(
                topic_id_partition,
                self._checkpointed.get((topic_id_partition.topic, topic_id_partition.partition), Offset(0)),
            )

    def topic_id_partition(self, name: str) -> TopicIdPartition:
        """Return the partition whose directory is called ``name``."""
        return next(
            topic_id_partition for topic_id_partition in self.table.local.partitions if str(topic_id_partition) == name
        )

    def tiered(self, topic_id_partition: TopicIdPartition) -> TieredPartition:
        local = self.table.local.partitions[topic_id_partition]
        epoch = local.leader_epochs[-1].epoch
        view = LeaderView(
            topic_id_partition=topic_id_partition,
            leader_id=BROKER,
            leader_epoch=epoch,
            replicas=(BROKER,),
            in_sync_replicas=(BROKER,),
        )
        return TieredPartition(view=view, role=PartitionRole.LEADER, policy=self.policy)

    def depose(self, topic_id_partition: TopicIdPartition) -> None:
        """Have another broker lead the partition from now on."""
        tiered = self.table.assignment[topic_id_partition]
        self.table.assignment = {
            **self.table.assignment,
            topic_id_partition: replace(tiered, role=PartitionRole.FOLLOWER),
        }

    def _target(self) -> CopyTarget:
        return CopyTarget(
            objects=SegmentObjects(
                settings=self.settings,
                store=self.store,
                blocking=self.blocking,
                ids=self.ids,
                failpoints=self.failpoints,
            ),
            gates=self.gates,
            remover=self.remover,
            in_flight=self.in_flight,
        )

    def _uploader(self) -> SegmentUploader:
        return SegmentUploader(
            sources=self.sources,
            edges=self.edges,
            actor=self.actor,
            target=self.target,
            carried=self.carried(),
            log_dirs=self.log_dirs,
            waits=self.waits,
            settings=UploadSettings(
                custom_metadata_max_bytes=self.settings.custom_metadata_max_bytes,
                backoff=Backoff(initial_s=0.0, maximum_s=0.0),
            ),
        )

    def carried(self) -> CarriedTransactions:
        """Return the transactions as another sidecar has them, which knows what is in the store."""
        cuts = OpenAtCuts(
            metadata=self.metadata,
            blobs=self.blobs,
            manifests=self.manifests,
            chunks=StoreChunkManager(store=self.store, blocking=self.blocking),
            blocking=self.blocking,
        )
        return CarriedTransactions(metadata=self.metadata, blobs=self.blobs, cuts=cuts)

    def _admission(self) -> CopyAdmission:
        return CopyAdmission(
            slots=self.copy_slots,
            quota=self.quota,
            backfill=self.backfill,
            backfill_quota=CopyQuota(quota=RateQuota(), clock=self.clock),
            gates=self.gates,
        )

    def _recopy(self) -> RecopyTask:
        return RecopyTask(
            sources=self.sources,
            edges=self.edges,
            actor=self.actor,
            target=self.target,
            presence=SegmentPresence(self.store, self.settings.key_prefix),
            uploader=self.uploader,
            fetched=FetchedSegments(
                directory=self.log_dir.parent / "rewritten",
                stream=SegmentStream(
                    store=self.store,
                    blocking=self.blocking,
                    key_prefix=self.settings.key_prefix,
                    key_ring=self.settings.key_ring,
                ),
                blobs=self.blobs,
                pace=self.pace,
                blocking=self.blocking,
            ),
            admission=self.admission,
        )

    def _copy(self) -> CopyTask:
        cuts = TailCuts(scratch=self.log_dir.parent / "cut", blocking=self.blocking)
        return CopyTask(
            sources=self.sources,
            edges=self.edges,
            actor=self.actor,
            uploader=CuttingUploader(uploader=self.uploader, table=self.table, cuts=cuts),
            admission=self.admission,
            lag=self.lag,
            waits=self.waits,
            batch_epochs=BatchEpochs(table=self.table, log_dirs=self.log_dirs),
        )

    def _trim(self) -> TrimTask:
        remote = SegmentStream(
            store=self.store,
            blocking=self.blocking,
            key_prefix=self.settings.key_prefix,
            key_ring=self.settings.key_ring,
        )
        return TrimTask(
            sources=self.sources,
            edges=self.edges,
            actor=self.actor,
            checks=self.checks,
            verifier=ReadBack(log_dirs=self.log_dirs, remote=remote, quota=self.quota, pace=self.pace),
            gate=self.trim_gate,
            compacted=CompactedTrims(
                sources=self.sources,
                edges=self.edges,
                cleaner=FilesystemPins([str(self.log_dir)], blocking=self.blocking),
                verifier=ContainedReadBack(
                    log_dirs=self.log_dirs,
                    remote=remote,
                    quota=self.quota,
                    pace=self.pace,
                    blocking=self.blocking,
                ),
                is_enabled=True,
            ),
        )
