"""``tiersidecar accept-log-loss`` and ``accept-topic-loss``: confirm that a log, or records of the own topics, are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.options import AsJson, ConfigFile, DryRun, Partition, Topic, Yes

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session
from tiersidecar.domain.ids import format_uuid


def accept_topic_loss(
    config_file: ConfigFile,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Confirm that the state topic or the metadata topic lost records, and that they cannot be restored.

    Until then, sidecars that detected the loss copy, trim and delete nothing. Afterwards they use what the topics contain now.
    Remote log starts, users' deletes, holds, pauses, the trash and tiering settings without a record are forgotten, and so are
    segments that no event names. Restart the sidecars that were running when the topic was lost.
    """
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    carry_out(look_at_topic_loss, manner, with_metadata=False)


async def look_at_topic_loss(session: Session) -> Intent:
    """Return the state of both topics as they are now: a command cannot know what they were."""
    from tiersidecar.app.commands.session import operator

    names = [session.config.state_topic_name, session.config.remote_log_metadata_topic_name]
    views = await session.broker.describe_partitions(names)
    found = {view.topic_id_partition.topic: format_uuid(view.topic_id_partition.topic_id) for view in views}
    facts = {
        "state_topic": names[0],
        "state_topic_id": found.get(names[0]),
        "metadata_topic": names[1],
        "metadata_topic_id": found.get(names[1]),
        "partitions_with_a_state": len(session.state.partitions()),
    }
    steps = (
        "records that these two topics lack count as lost for good; the sidecars use what the topics contain now",
        "data that users deleted, and whose record is lost, is readable again if it is still remote",
    )
    by = operator("accept-topic-loss")
    return Intent(facts=facts, steps=steps, apply=lambda: session.state.accept_losses(found, by=by))


def accept_log_loss(
    topic: Topic,
    partition: Partition,
    config_file: ConfigFile,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Confirm that all replicas of a partition were lost and its log was created again.

    Until then nothing of it expires, so its remote segments can be used to restore it. Afterwards the segments from before the
    loss expire by their own retention.
    """
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    carry_out(lambda session: look_at_loss(session, topic, partition), manner)


async def look_at_loss(session: Session, topic: str, partition: int) -> Intent:
    """Return what is remote, and what accepting the loss changes."""
    from tiersidecar.ports.state_log import PartitionState

    view = await session.partition(topic, partition)
    topic_id_partition = view.topic_id_partition
    segments = (await session.remote_segments([topic_id_partition]))[topic_id_partition]
    accepted = session.state.partition_state(topic_id_partition).accepted_loss_epoch
    facts = {
        "topic": topic,
        "partition": partition,
        "leader_epoch": view.leader_epoch,
        "accepted_loss_epoch": accepted,
        "remote_segments": len(segments),
        "remote_bytes": sum(segment.segment_size_in_bytes for segment in segments),
    }
    if accepted >= view.leader_epoch:
        return Intent(facts=facts)
    said = PartitionState(accepted_loss_epoch=view.leader_epoch)
    return Intent(
        facts=facts,
        steps=("remote segments from before the log was created again expire by their own retention from now on",),
        apply=lambda: session.state.publish_partition_state(topic_id_partition, said),
    )
