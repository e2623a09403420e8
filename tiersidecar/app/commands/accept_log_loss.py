"""``tiersidecar accept-log-loss``: confirm that a partition's log was lost and began anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.options import AsJson, ConfigFile, DryRun, Partition, Topic, Yes

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session


def accept_log_loss(
    topic: Topic,
    partition: Partition,
    config_file: ConfigFile,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Confirm that all replicas of a partition were lost and its log began anew.

    Until then nothing of it expires, so that its remote segments can serve to restore it. Afterwards those of the time before
    expire by their own retention.
    """
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    carry_out(lambda session: look_at_loss(session, topic, partition), manner)


async def look_at_loss(session: Session, topic: str, partition: int) -> Intent:
    """What is remote, and what accepting the loss means."""
    from tiersidecar.ports.state_log import PartitionState

    view = await session.partition(topic, partition)
    tip = view.topic_id_partition
    segments = (await session.remote_segments([tip]))[tip]
    accepted = session.state.partition_state(tip).accepted_loss_epoch
    facts = {
        "topic": topic,
        "partition": partition,
        "leader_epoch": view.leader_epoch,
        "accepted_loss_epoch": accepted,
        "remote_segments": len(segments),
        "remote_bytes": sum(one.segment_size_in_bytes for one in segments),
    }
    if accepted >= view.leader_epoch:
        return Intent(facts=facts)
    said = PartitionState(accepted_loss_epoch=view.leader_epoch)
    return Intent(
        facts=facts,
        steps=("remote segments of the time before the log began anew expire by their own retention from now on",),
        apply=lambda: session.state.publish_partition_state(tip, said),
    )
