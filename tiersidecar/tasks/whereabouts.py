"""Tell of led partitions whose directory is not here, or is not the one that the broker writes: nothing is done with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from tiersidecar.decide.place import TELL_AFTER_S, UnwrittenEpoch, may_be_unwritten, reason_unseen
from tiersidecar.decide.topics import PartitionRole
from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH
from tiersidecar.ports.broker import EndOfEpochs, EpochAsked, EpochEndAnswer, ListOffsets, OffsetSpec
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.process import MISPLACED_PARTITIONS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.board import Board

log = structlog.get_logger(__name__)


class AskOfEpochs(EndOfEpochs, ListOffsets, Protocol):
    """What the broker is asked."""


class Whereabouts:
    """Keeps ``board.misplaced`` true, of what has lasted for ``TELL_AFTER_S``; each is told once."""

    def __init__(self, *, board: Board, broker: AskOfEpochs, clock: Clock, telemetry: Telemetry) -> None:
        self._board, self._broker, self._clock, self._telemetry = board, broker, clock, telemetry
        self._since_s: dict[TopicIdPartition, float] = {}

    async def look(self) -> None:
        """Compare what the roster and the topic checks have just found, and ask the broker where its file is not enough."""
        await self._ask()
        now_s, reasons = self._clock.monotonic_s(), self._reasons()
        self._since_s = {tip: self._since_s.get(tip, now_s) for tip in reasons}
        lasting = {tip: why for tip, why in reasons.items() if now_s - self._since_s[tip] >= TELL_AFTER_S}
        before, self._board.misplaced = self._board.misplaced, lasting
        for tip in before.keys() - lasting.keys():
            self._telemetry.forget(MISPLACED_PARTITIONS, topic=tip.topic, partition=str(tip.partition))
            log.info("partition.misplaced.cleared", topic=tip.topic, partition=tip.partition)
        for tip in lasting.keys() - before.keys():
            self._telemetry.gauge(MISPLACED_PARTITIONS, 1, topic=tip.topic, partition=str(tip.partition))
            log.error("partition.misplaced", topic=tip.topic, partition=tip.partition, reason=lasting[tip])

    def _reasons(self) -> dict[TopicIdPartition, str]:
        reasons = dict.fromkeys(self._board.unseen, reason_unseen(self._board.local.faults))
        reasons |= {tip: why for tip, one in self._board.assignment.items() if (why := self._board.doubt(one))}
        return {tip: reason for tip, reason in reasons.items() if tip.topic not in self._board.refused_topics}

    async def _ask(self) -> None:
        """Keep ``board.unwritten_epochs`` true; while the broker does not answer, what it said of an epoch holds in it."""
        questions, said = self._questions(), self._board.unwritten_epochs
        self._board.unwritten_epochs = {tip: said[tip] for tip in questions.keys() & said.keys()}
        try:
            self._board.unwritten_epochs = await self._unwritten(questions)
        except RetriableError as error:
            log.warning("unwritten_epochs.not_told", partitions=len(questions), error=str(error))

    def _questions(self) -> dict[TopicIdPartition, EpochAsked]:
        """Led partitions whose files end with an earlier epoch, with that one."""
        found = dict[TopicIdPartition, EpochAsked]()
        for tip, partition in self._board.assignment.items():
            local = self._board.local.partitions.get(tip)
            if local is None or partition.role is not PartitionRole.LEADER:
                continue
            last_epoch = may_be_unwritten(partition.view, local)
            if last_epoch is not None:
                found[tip] = EpochAsked(current_epoch=partition.view.leader_epoch, epoch=last_epoch)
        return found

    async def _unwritten(
        self, questions: Mapping[TopicIdPartition, EpochAsked]
    ) -> dict[TopicIdPartition, UnwrittenEpoch]:
        known = await self._ends({tip: replace(one, epoch=one.current_epoch) for tip, one in questions.items()})
        unknown = {tip: one for tip, one in questions.items() if tip in known and known[tip].epoch == NO_EPOCH}
        ends = await self._ends(unknown)
        agreed = {tip: one for tip, one in unknown.items() if tip in ends and ends[tip].epoch == one.epoch}
        fences = {tip: one.current_epoch for tip, one in agreed.items()}
        latest = await self._broker.list_offsets(fences, OffsetSpec.LATEST) if fences else {}
        return {
            tip: UnwrittenEpoch(leader_epoch=one.current_epoch, last_epoch=one.epoch, end_offset=ends[tip].end_offset)
            for tip, one in agreed.items()
            if latest[tip].error is None and latest[tip].offset <= ends[tip].end_offset
        }

    async def _ends(self, asked: Mapping[TopicIdPartition, EpochAsked]) -> dict[TopicIdPartition, EpochEndAnswer]:
        """Without those that the broker has nothing to say of: another leads, or in another epoch."""
        answers = await self._broker.end_of_epochs(asked) if asked else {}
        return {tip: answer for tip, answer in answers.items() if answer.error is None}
