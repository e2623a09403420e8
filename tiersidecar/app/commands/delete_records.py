"""``tiersidecar delete-records``: move the log start of a partition, remote and local."""

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

    The offset may be inside a segment. From then on gateway and read service return nothing below it. After
    user.delete.delay the leader's sidecar deletes the remote segments that end below it, and the broker's records. Until then
    `tiersidecar undelete` restores them, and clients of the broker itself still read what it has.
    """
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    carry_out(lambda session: look_at_deletion(session, topic, partition, offset), manner)


async def look_at_deletion(session: Session, topic: str, partition: int, offset: int) -> Intent:
    """Return the present state, and what deleting up to ``offset`` changes."""
    from tiersidecar.app.config.values import Quantity
    from tiersidecar.ports.broker import OffsetSpec
    from tiersidecar.reading.user_deletes import UserDelete

    view = await session.partition(topic, partition)
    topic_id_partition = view.topic_id_partition
    log_start, high_watermark = (
        await session.offset(view, OffsetSpec.EARLIEST),
        await session.offset(view, OffsetSpec.LATEST),
    )
    known = session.state.partition_state(topic_id_partition)
    target = Offset(high_watermark if offset == HIGH_WATERMARK else offset)
    facts = {
        "topic": topic,
        "partition": partition,
        "remote_log_start_offset": known.remote_log_start_offset,
        "local_log_start_offset": log_start,
        "high_watermark": high_watermark,
        "offset": target,
    }
    if session.policy(topic, topic_id_partition.topic_id) is None:
        return Intent(facts=facts, refusal="the topic is not tiered: use kafka-delete-records")
    if target > high_watermark:
        return Intent(facts=facts, refusal=f"offset {target} is above the high watermark {high_watermark}")
    # What can be undone for a while stays in the broker's log as long; the leader's sidecar deletes it when it is due.
    delay_ms = session.config.user_delete_delay
    trims = target > log_start and not delay_ms
    delete = UserDelete(offset=target, leader_epoch=view.leader_epoch, trims=trims)
    later = f", once {Quantity('duration_ms').format(delay_ms)} are over" if delay_ms else ""
    steps = []
    if not delete.is_said(known):
        segments = (await session.remote_segments([topic_id_partition]))[topic_id_partition]
        if lost := _reason_state_lost(session, topic_id_partition, segments):
            return Intent(facts=facts, refusal=lost)
        below = [segment for segment in segments if segment.end_offset < target]
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


def _reason_state_lost(
    session: Session, topic_id_partition: TopicIdPartition, segments: Sequence[RemoteLogSegmentMetadata]
) -> str:
    """Return why the state topic seems to have lost the partition: a delete would write a new record and hide that."""
    from tiersidecar.decide.lost_logs import KnownOfPartition, reason_log_lost
    from tiersidecar.domain.states import RemoteLogSegmentState

    return reason_log_lost(
        KnownOfPartition(
            has_record=topic_id_partition in session.state.partitions(),
            was_claimed=True,  # else the leader's sidecar will have made its first record in a moment
            has_segments=any(segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED for segment in segments),
            was_seen=False,  # that is the sidecar's affair
            remote_log_start_offset=-1,
            held_offset=-1,
            state_loss_accepted=session.state.topic_id in session.state.accepted_losses(),
            metadata_loss_accepted=False,
        )
    )


async def _delete(session: Session, view: LeaderView, delete: UserDelete) -> None:
    """Publish the delete first: if this process ends, the leader's next round does the rest."""
    from tiersidecar.app.builders.retain import trash_delays
    from tiersidecar.app.commands.session import operator
    from tiersidecar.reading.user_deletes import Asker

    topic_id_partition = view.topic_id_partition
    now_ms = decision_ms(session.clock.now_ms(), [session.state.lease(str(view.leader_id))])
    asker = Asker(by=operator("delete-records"), now_ms=now_ms, delays=trash_delays(session.config))
    await delete.say(session.state, topic_id_partition, asker)
    if not delete.trims:
        return
    answer = (
        await session.broker.delete_records(
            {topic_id_partition: delete.offset}, leader_epochs={topic_id_partition: view.leader_epoch}
        )
    )[topic_id_partition]
    if answer.error is not None:
        raise BrokerRefusedError(api="DeleteRecords", subject=str(topic_id_partition), error=answer.error)
