"""``tiersidecar delete-records``: move the start of a partition, remotely and locally."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.options import AsJson, ConfigFile, DryRun, Partition, Topic, Yes
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.lease import decision_ms
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LeaderView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiersidecar.app.commands.session import Session
    from tiersidecar.domain.ids import TopicIdPartition
    from tiersidecar.domain.segments import RemoteLogSegmentMetadata
    from tiersidecar.reading.user_deletes import UserDelete

HIGH_WATERMARK = -1


def delete_records(
    topic: Topic,
    partition: Partition,
    offset: Annotated[
        int,
        typer.Option("--offset", metavar="X", min=-1, help="The first offset that stays; -1 is the high watermark."),
    ],
    config_file: ConfigFile,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete all records of a partition below an offset, remote and local ones.

    The offset may lie in the middle of a segment. Nobody reads below it from then on through the gateway or the read service;
    remote segments that lie wholly below it are deleted by the leader's sidecar once user.delete.delay is over, and so are the
    broker's own. Until then `tiersidecar undelete` brings them back, and who asks the broker itself reads what it still has.
    """
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    carry_out(lambda session: look_at_deletion(session, topic, partition, offset), manner)


async def look_at_deletion(session: Session, topic: str, partition: int, offset: int) -> Intent:
    """What is there, and what deleting up to ``offset`` means."""
    from tiersidecar.app.config.values import Quantity
    from tiersidecar.ports.broker import OffsetSpec
    from tiersidecar.reading.user_deletes import UserDelete

    view = await session.partition(topic, partition)
    tip = view.topic_id_partition
    log_start, high_watermark = (
        await session.offset(view, OffsetSpec.EARLIEST),
        await session.offset(view, OffsetSpec.LATEST),
    )
    known = session.state.partition_state(tip)
    target = Offset(high_watermark if offset == HIGH_WATERMARK else offset)
    facts = {
        "topic": topic,
        "partition": partition,
        "remote_log_start_offset": known.remote_log_start_offset,
        "local_log_start_offset": log_start,
        "high_watermark": high_watermark,
        "offset": target,
    }
    if session.policy(topic, tip.topic_id) is None:
        return Intent(facts=facts, refusal="the topic is not tiered; kafka-delete-records deletes its records")
    if target > high_watermark:
        return Intent(facts=facts, refusal=f"offset {target} is above the high watermark {high_watermark}")
    # What can be undone for a while stays in the broker's log as long; the leader's sidecar deletes it when it is due.
    delay_ms = session.config.user_delete_delay
    trims = target > log_start and not delay_ms
    delete = UserDelete(offset=target, leader_epoch=view.leader_epoch, trims=trims)
    later = f", once {Quantity('duration_ms').format(delay_ms)} are over" if delay_ms else ""
    steps = []
    if not delete.is_said(known):
        segments = (await session.remote_segments([tip]))[tip]
        if lost := _reason_state_lost(session, tip, segments):
            return Intent(facts=facts, refusal=lost)
        below = [one for one in segments if one.end_offset < target]
        size_bytes = sum(one.segment_size_in_bytes for one in below)
        if target < known.remote_log_start_offset and view.leader_epoch == known.remote_log_start_epoch:
            moved = f"the remote log starts at {known.remote_log_start_offset} already; no later undelete goes below {target}"
            steps.append(f"{moved}; {len(below)} remote segments ({size_bytes} bytes) go{later}")
        else:
            steps.append(
                f"the remote log starts at {target}; {len(below)} remote segments ({size_bytes} bytes) go{later}"
            )
        if target > log_start and delay_ms:
            steps.append(f"the broker deletes its records in [{log_start}, {target}){later}")
    if trims:
        steps.append(f"the broker deletes its records in [{log_start}, {target})")
    return Intent(facts=facts, steps=tuple(steps), apply=lambda: _delete(session, view, delete))


def _reason_state_lost(session: Session, tip: TopicIdPartition, segments: Sequence[RemoteLogSegmentMetadata]) -> str:
    """A delete would make the first record of a partition that the state topic has forgotten, and so hide that it has."""
    from tiersidecar.decide.lost_logs import KnownOfPartition, reason_log_lost
    from tiersidecar.domain.states import RemoteLogSegmentState

    return reason_log_lost(
        KnownOfPartition(
            has_record=tip in session.state.partitions(),
            was_claimed=True,  # else the leader's sidecar will have made its first record in a moment
            has_segments=any(one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED for one in segments),
            was_seen=False,  # that is the sidecar's affair
            remote_log_start_offset=-1,
            held_offset=-1,
            state_loss_accepted=session.state.topic_id in session.state.accepted_losses(),
            metadata_loss_accepted=False,
        )
    )


async def _delete(session: Session, view: LeaderView, delete: UserDelete) -> None:
    """Said first: whatever comes after it may be done by the leader's next round."""
    from tiersidecar.app.builders.retain import trash_delays
    from tiersidecar.app.commands.session import operator
    from tiersidecar.reading.user_deletes import Asker

    tip = view.topic_id_partition
    now_ms = decision_ms(session.clock.now_ms(), [session.state.lease(str(view.leader_id))])
    asker = Asker(by=operator("delete-records"), now_ms=now_ms, delays=trash_delays(session.config))
    await delete.say(session.state, tip, asker)
    if not delete.trims:
        return
    answer = (await session.broker.delete_records({tip: delete.offset}, leader_epochs={tip: view.leader_epoch}))[tip]
    if answer.error is not None:
        raise BrokerRefusedError(api="DeleteRecords", subject=str(tip), error=answer.error)
